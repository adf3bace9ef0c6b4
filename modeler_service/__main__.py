"""`python -m modeler_service` is the console script `blindopt-modeler`."""

from service_kit import collector
from service_kit.cli.streams import open_streams


def main() -> None:
    open_streams()
    with collector.importing():
        from modeler_service import cli

    cli.main()


if __name__ == "__main__":
    main()
