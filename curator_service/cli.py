"""`blindopt-curator`: serve, token, audit, backup, restore, attack.

A command imports what it needs when it runs: `token` and `audit` do without the web framework and the numerics.
"""

import json
import textwrap
from typing import TYPE_CHECKING, Annotated, cast

import typer

from curator_service import store
from curator_service.desk import open_desk
from curator_service.service import invariants
from curator_service.settings import Settings
from shared import wire
from shared.serving import cli
from shared.serving.desk import Desk
from shared.serving.settings import ServiceSettings
from shared.serving.store.database import Connection

if TYPE_CHECKING:
    from fastapi import FastAPI


def _build(settings: ServiceSettings) -> "FastAPI":
    from curator_service.app import build

    return build(cast(Settings, settings))


def _restored(db: Connection, desk: Desk) -> None:
    from curator_service.service.studies import restored

    restored(db, desk)


app = cli.build(
    service="blindopt-curator",
    about="Hold a data owner's records: release candidates, answer queries by row.",
    main_role="owner",
    roles=("owner", "measurer", "auditor"),
    settings=Settings,
    desk=lambda settings: open_desk(cast(Settings, settings)),
    app=_build,
    check=invariants.check,
    files=lambda db: [f"files/{name}" for name in store.file_names(db)],
    restored=_restored,
)


@app.command()
def attack(
    study: Annotated[str, typer.Argument(help="Study id: a draft, or one that was released.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Attack a study on this machine, and tell what an attacker gets: changes nothing, also beside the service.

    A draft is attacked on a trial release that is thrown away, a released study on the Z that left. What is told
    depends on the records: it is for their owner.
    """
    from curator_service.service import trials
    from curator_service.vault import Vault

    with cli.plain_errors():
        chosen = cli.existing(Settings)
        with open_desk(cast(Settings, chosen)) as desk:
            view, found = trials.on_study(desk.database, Vault(chosen.data_dir / "files"), study)
    if as_json:
        told = {"study_id": view.id, "state": view.state, "findings": [finding.model_dump() for finding in found]}
        typer.echo(json.dumps(told, indent=2))
    else:
        typer.echo(_table(view, found))


def _table(view: wire.StudyOwnerView, found: list[wire.Finding]) -> str:
    what = "a trial release" if view.release_id is None else f"release {view.release_id}; what needs more, on trials"
    lines = [f"{view.id} ({view.spec.release.mechanism}, {view.state}): attacks on {what}", ""]
    if not found:
        return "\n".join([*lines, "No attack applies: the study has too few rows, or a trial could not be released."])
    lines.append(f"{'attack':17} {'figure':>9}  interval")
    for finding in found:
        high = "" if finding.high is None else f"{finding.high:.4g}"
        interval = f"{finding.low:.4g} to {high}" if high else f"at least {finding.low:.4g}"
        lines.append(f"{finding.attack:17} {finding.figure:9.4g}  {interval}, {100 * finding.confidence:g} %")
        lines.append(textwrap.indent(f"{finding.unit}", " " * 4))
        lines.append(textwrap.fill(finding.sentence, 100, initial_indent=" " * 4, subsequent_indent=" " * 4))
    return "\n".join(lines)


def main() -> None:
    """The console script."""
    app()
