"""`python -m modeler_service` is the console script `blindopt-modeler`."""

from service_kit import collector


def main() -> None:
    with collector.importing():
        from modeler_service import cli

    cli.main()


if __name__ == "__main__":
    main()
