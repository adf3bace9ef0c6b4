"""`python -m curator_service` is the console script `blindopt-curator`."""

from curator_service.cli import main

if __name__ == "__main__":
    main()
