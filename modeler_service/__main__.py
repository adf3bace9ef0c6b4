"""`python -m modeler_service` is the console script `blindopt-modeler`."""

from modeler_service.cli import main

if __name__ == "__main__":
    main()
