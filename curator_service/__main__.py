"""`python -m curator_service` is the console script `blindopt-curator`."""

from service_kit import collector
from service_kit.cli import huge_pages


def main() -> None:
    """Run the command line."""
    huge_pages.use("serve")  # before the imports, which the process would have to repeat
    with collector.importing():
        from curator_service import cli

    cli.main()


if __name__ == "__main__":
    main()
