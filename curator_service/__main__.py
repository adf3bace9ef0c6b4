"""`python -m curator_service` is the console script `blindopt-curator`."""

from service_kit import collector


def main() -> None:
    with collector.importing():
        from curator_service import cli

    cli.main()


if __name__ == "__main__":
    main()
