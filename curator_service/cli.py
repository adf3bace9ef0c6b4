"""`blindopt-curator`: serve, token, audit, backup, restore."""

from typing import cast

from curator_service import store
from curator_service.app import build, open_desk
from curator_service.service import invariants
from curator_service.service.studies import restored
from curator_service.settings import Settings
from shared.serving import cli

app = cli.build(
    service="blindopt-curator",
    about="Hold a data owner's records: release candidates, answer queries by row.",
    main_role="owner",
    roles=("owner", "measurer", "auditor"),
    settings=Settings,
    desk=lambda settings: open_desk(cast(Settings, settings)),
    app=lambda settings: build(cast(Settings, settings)),
    check=invariants.check,
    files=lambda db: [f"files/{name}" for name in store.file_names(db)],
    restored=restored,
)


def main() -> None:
    """The console script."""
    app()
