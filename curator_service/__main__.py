"""`python -m curator_service` is the console script `blindopt-curator`."""

from service_kit import collector
from service_kit.cli.streams import open_streams


def main() -> None:
    open_streams()
    with collector.importing():
        from curator_service import cli

    cli.main()


if __name__ == "__main__":
    main()
