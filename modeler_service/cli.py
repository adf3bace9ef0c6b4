"""`blindopt-modeler`: serve, token, audit, backup, restore."""

from typing import cast

from modeler_service import invariants
from modeler_service.app import build, open_desk
from modeler_service.settings import Settings
from modeler_service.witness import restored
from shared.serving import cli

app = cli.build(
    service="blindopt-modeler",
    about="Optimize over a curator's records without seeing them.",
    main_role="vendor",
    roles=("vendor", "viewer"),
    settings=Settings,
    desk=lambda settings: open_desk(cast(Settings, settings)),
    app=lambda settings: build(cast(Settings, settings)),
    check=invariants.check,
    files=lambda db: [],  # candidates are fetched again, and checked against their digest
    restored=restored,  # runs ask again under the same keys: nothing is lost
)


def main() -> None:
    """The console script."""
    app()
