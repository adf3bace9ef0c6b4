"""`study`, `grant`, `inbox`: an owner's and a measurer's daily work at a running curator."""

import json
from pathlib import Path
from typing import Annotated, get_args

import typer

from blindopt import wire
from blindopt.display import counted
from blindopt.errors import Invalid, Remote, StateConflict
from blindopt.faults import nearest
from blindopt.formats.numbers import DecimalSigns, either, readings
from blindopt.formats.text_files import save_secret
from blindopt.wire.base import parsed
from curator_service.cli import uploading
from curator_service.cli.program import PROGRAM, as_measurer, as_owner
from service_kit.cli.program import plain_errors, read_json
from service_kit.cli.remote import AsJson, TokenFile, Url, Yes, address_of, confirm, show, table

StudyId = Annotated[str, typer.Argument(help="std_...", metavar="STUDY")]
DatasetId = Annotated[str, typer.Argument(help="ds_...", metavar="DATASET")]
Note = Annotated[str | None, typer.Option(help="Note for the owner only.")]
REASONS: tuple[wire.DeclineReason, ...] = get_args(wire.DeclineReason)
study_cli = typer.Typer(no_args_is_help=True, help="Studies at a running curator.")


@study_cli.command("list")
def list_studies(url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List studies, oldest first.

    Example: blindopt-curator study list --token-file owner-token
    """
    with as_owner(url, token_file) as client:
        studies = client.studies()
    rows = [[view.id, view.state, f"{view.created_at:%Y-%m-%d}", view.spec.name] for view in studies]
    show(studies, table(["study", "state", "made", "name"], rows), as_json)


@study_cli.command("show")
def show_study(study: StudyId, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show a study: its state, what it promises, and what it has used.

    Example: blindopt-curator study show std_0123456789abcdef
    """
    with as_owner(url, token_file) as client:
        released = client.study(study)
        view, words = released.view, f"{released}\n\n{released.account()}"
    show(view, words, as_json)


@study_cli.command()
def template(
    dataset: DatasetId,
    outcome: Annotated[str | None, typer.Option(help="Column to optimize. Default: the last one.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print the body of a study on a dataset, to edit: words in capitals stand for what only you know.

    Bounds are public knowledge: none is taken from the records.

    Example: blindopt-curator study template ds_0123456789abcdef > study.json
    """
    with as_owner(url, token_file) as client:
        view = client.dataset(dataset).view
    names = [column.name for column in view.columns]
    measured = names[-1] if outcome is None else outcome
    if measured not in names:
        raise typer.BadParameter(f"names no column of the dataset{nearest(measured, names)}", param_hint="--outcome")
    bounds = {"lower": "SMALLEST POSSIBLE VALUE", "upper": "LARGEST POSSIBLE VALUE"}
    ranges = {name: {"lower": 0, "upper": 1} for name in names if "=" in name}  # made from a public list
    release, answers = {"mechanism": "auto", "epsilon": "EPSILON, SUCH AS 3"}, dict(_TEMPLATE_ANSWERS)
    body = {
        "name": "NAME",
        "dataset_id": view.id,
        "features": [{"column": name, **ranges.get(name, bounds)} for name in names if name != measured],
        "measurement": {"source": "column", "column": measured, "direction": "maximize"},
        "release": {"mechanism": "identity"} if view.public else release,
        "answers": {"mechanism": "none"} if view.public else answers,
        "budget": {"queries": 50},
    }
    typer.echo(json.dumps(body, indent=2, ensure_ascii=False))


_TEMPLATE_ANSWERS = {
    "mechanism": "auto",
    "epsilon": "EPSILON OF AN ANSWER, SUCH AS 0.5",
    "centre": "MIDDLE OF THE OUTCOMES",
    "value_bound": "HALF OF THEIR RANGE",
}


@study_cli.command("create")
def create_study(
    file: Annotated[Path, typer.Argument(help="JSON file with the body of POST /v1/studies.")],
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a draft of a study, as `study template` prints one. Nothing is drawn, charged or released.

    Example: blindopt-curator study create study.json
    """
    with plain_errors():
        body = read_json(file, wire.StudyCreate, "the body of POST /v1/studies")
    with as_owner(url, token_file) as client:
        draft = client.create_study(body)
        check = client.check(draft.spec)
    worth = check.answers_mean.sentences if check.answers_mean else []
    advice = [*([check.tool.why] if check.tool else []), *worth, *(caution.message for caution in check.cautions)]
    show(draft, "\n".join([draft.id, draft.guarantee, *advice]), as_json)


@study_cli.command()
def preview(study: StudyId, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Attack a trial release of a draft, which is thrown away. For the owner alone; charges nothing.

    Example: blindopt-curator study preview std_0123456789abcdef
    """
    with as_owner(url, token_file) as client:
        report = client.preview(study)
    show(report, f"{report}\n{report.choosing or ''}".strip(), as_json)


@study_cli.command()
def release(
    study: StudyId,
    confirm_high_risk: Annotated[
        bool, typer.Option("--confirm-high-risk", help="Release although the preview found a high risk.")
    ] = False,
    confirm_chance: Annotated[
        bool, typer.Option("--confirm-chance", help="Release although its answers find no better record than chance.")
    ] = False,
    confirm_consent: Annotated[
        bool, typer.Option("--confirm-consent", help="All persons agreed that a measured record leaves again.")
    ] = False,
    yes: Yes = False,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Draw and publish the candidates, once. This cannot be undone.

    Example: blindopt-curator study release std_0123456789abcdef --yes
    """
    with as_owner(url, token_file) as client:
        draft = client.study(study).view
        confirm(f"{draft.guarantee}\nRelease {draft.spec.name}? This cannot be undone.", yes)
        confirmed = {"confirm_high_risk": confirm_high_risk, "confirm_chance": confirm_chance}
        confirmed["confirm_consent"] = confirm_consent
        request = wire.ReleaseAsked(spec_sha256=draft.spec_sha256, **confirmed)
        try:
            view = client.release(study, request=request)
        except Remote as refusal:
            says = str(refusal)
            for field in confirmed:
                says = says.replace(f"{field} true", f"--{field.replace('_', '-')}")
            raise StateConflict(says) from refusal
    show(view, f"{view.id} is {view.state}\n{view.guarantee}", as_json)


@study_cli.command()
def answer_all(
    study: StudyId, yes: Yes = False, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Answer about every group of a study of groups at once, and list them, those expected to be best first.

    Example: blindopt-curator study answer-all std_0123456789abcdef --yes
    """
    with as_owner(url, token_file) as client:
        confirm("Answer about every group? It uses the epsilon of one answer of each record at most, for good.", yes)
        groups = client.study(study).answer_all()
    show(groups, str(groups), as_json)


@study_cli.command()
def close(
    study: StudyId, yes: Yes = False, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Refuse further queries, for good.

    Example: blindopt-curator study close std_0123456789abcdef --yes
    """
    confirm(f"Close {study}? It is not opened again.", yes)
    with as_owner(url, token_file) as client:
        view = client.close_study(study)
    show(view, f"{view.id} is {view.state}", as_json)


dataset_cli = typer.Typer(no_args_is_help=True, help="Datasets at a running curator.")


@dataset_cli.command("list")
def list_datasets(url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List datasets, oldest first.

    Example: blindopt-curator dataset list
    """
    with as_owner(url, token_file) as client:
        views = [dataset.view for dataset in client.datasets()]
    rows = [[view.id, "erased" if view.erased_at else view.state, view.rows, view.name] for view in views]
    show(views, table(["dataset", "state", "records", "name"], rows), as_json)


dataset_cli.command()(uploading.upload)


@dataset_cli.command()
def archive(dataset: DatasetId, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Refuse new studies on a dataset.

    Example: blindopt-curator dataset archive ds_0123456789abcdef
    """
    with as_owner(url, token_file) as client:
        view = client.archive_dataset(dataset)
    show(view, f"{view.id} is {view.state}", as_json)


@dataset_cli.command()
def decide(
    dataset: DatasetId,
    continues: Annotated[
        list[str] | None, typer.Option("--continue", help="ds_... of an earlier dataset whose account it continues.")
    ] = None,
    separate: Annotated[str | None, typer.Option(help="Why its account stays apart from that of another one.")] = None,
    pseudonyms_differ: Annotated[
        bool, typer.Option("--pseudonyms-differ", help="Persons have other names in the earlier datasets.")
    ] = False,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Decide about a dataset that has people of earlier ones; without an option, show what is to be decided.

    Example: blindopt-curator dataset decide ds_0123456789abcdef --continue ds_fedcba9876543210
    """
    with as_owner(url, token_file) as client:
        if continues or separate is not None:
            view = client.decide_overlap(
                dataset, continues or (), separate=separate, pseudonyms_differ=pseudonyms_differ
            )
        else:
            view = client.dataset(dataset).view
    overlaps = [f"{overlap.dataset_id}: {overlap.sentence}" for overlap in view.overlaps]
    show(view, "\n".join(overlaps) or f"nobody of {view.id} is in an earlier dataset", as_json)


@dataset_cli.command()
def erase(
    dataset: DatasetId, yes: Yes = False, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Erase an archived dataset for good, with candidates and answers of its studies. Charges and logs stay.

    Example: blindopt-curator dataset erase ds_0123456789abcdef --yes
    """
    with as_owner(url, token_file) as client:
        view = client.dataset(dataset).view
        confirm(
            f"Erase {view.name} ({counted(view.rows, 'record')}), with all answers about it? This cannot be undone.",
            yes,
        )
        done = client.erase_dataset(dataset)
    counts = f"{len(done.studies)} studies, {done.replies} replies, {done.measurements} entries of measurements"
    show(done, f"{done.id} is erased: {counts}. Backups keep what they have, and vendors what they received", as_json)


grant_cli = typer.Typer(no_args_is_help=True, help="Grants of a study at a running curator: who may query it.")


@grant_cli.command("list")
def list_grants(study: StudyId, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List the grants of a study, never a token.

    Example: blindopt-curator grant list std_0123456789abcdef
    """
    with as_owner(url, token_file) as client:
        grants = client.grants(study)
    rows = [[grant.id, grant.state, f"{grant.tokens[-1].expires_at:%Y-%m-%d}", grant.name] for grant in grants]
    show(grants, table(["grant", "state", "expires", "name"], rows), as_json)


@grant_cli.command("create")
def create_grant(
    study: StudyId,
    name: Annotated[str, typer.Option(help="Name of the vendor.")],
    save: Annotated[Path, typer.Option(help="New file for address, study and token.")] = Path("grant.json"),
    days: Annotated[int, typer.Option(min=1, max=3_660, help="Days until its token expires.")] = 90,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Let a vendor query a study, and save its grant file. Send that file over a private channel.

    Example: blindopt-curator grant create std_0123456789abcdef --name "Acme" --save acme.json
    """
    with as_owner(url, token_file) as client:
        if save.exists():
            raise Invalid(f"{save} exists: name another file with --save")
        made = client.grant(
            study, parsed(wire.GrantCreate, {"name": name, "expires_in_days": days}, {"name": "--name"})
        )
        save_secret(save, wire.GrantFile.of(made, made.url or address_of(PROGRAM, url)).model_dump_json(indent=2))
        view = next(grant for grant in client.grants(study) if grant.id == made.id)
    show(view, f"{made.id}: saved in {save}, until {made.expires_at:%Y-%m-%d}", as_json)


@grant_cli.command()
def revoke(
    study: StudyId,
    grant: Annotated[str, typer.Argument(help="grt_...")],
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Refuse all tokens of a grant from now on.

    Example: blindopt-curator grant revoke std_0123456789abcdef grt_0123456789abcdef
    """
    with as_owner(url, token_file) as client:
        view = client.revoke(study, grant)
    show(view, f"{view.id} is {view.state}", as_json)


inbox_cli = typer.Typer(no_args_is_help=True, help="Measurements that people make, at a running curator.")
MeasurementId = Annotated[str, typer.Argument(help="msr_...", metavar="MEASUREMENT")]


@inbox_cli.command("list")
def list_measurements(
    study: Annotated[str | None, typer.Option(help="Only measurements of this study: std_...")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List open measurements, oldest first.

    Example: blindopt-curator inbox list --token-file measurer-token
    """
    with as_measurer(url, token_file) as client:
        items = list(client.measurements(study_id=study))
    rows = [
        [item.id, _whose(item), _shown(item), f"{item.question or ''}{f' ({item.unit})' if item.unit else ''}"]
        for item in items
    ]
    show(items, table(["measurement", "whom or what", "shown", "question"], rows), as_json)


def typed_number(text: str) -> float:
    """A number as a page takes it too. Raises BadParameter for one that can be read in two ways."""
    if signs := DecimalSigns([text]).unsure:
        raise typer.BadParameter(either(signs[0]))
    if not (numbers := readings(text)):
        raise typer.BadParameter("write a number, such as 0.25 or 1e-5")
    return numbers[0]


@inbox_cli.command(context_settings={"ignore_unknown_options": True})  # so that -3 is a value
def answer(
    measurement: MeasurementId,
    value: Annotated[float, typer.Argument(parser=typed_number, metavar="NUMBER", help="What was measured.")],
    note: Note = None,
    consent: Annotated[
        bool, typer.Option("--consent", help="The study's consent was read to the person, who agreed.")
    ] = False,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Enter a measured value.

    Example: blindopt-curator inbox answer msr_0123456789abcdef 44.25
    """
    with as_measurer(url, token_file) as client:
        item = client.measurement(measurement)
        values = [{"measurement_id": item.id, "value": value}]
        names = {"values.0.value": "VALUE", "note": "--note"}
        fields = {"values": values, "note": note, "consent": consent}
        state = client.answer(item.query_id, parsed(wire.AnswerCreate, fields, names))
    show(state, f"{item.id}: saved; {state.open} of its query still open", as_json)


@inbox_cli.command()
def decline(
    measurement: MeasurementId,
    reason: Annotated[str, typer.Option(help=f"One of {', '.join(REASONS)}.")] = "unavailable",
    note: Note = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Decline a measurement: it will not be made.

    Example: blindopt-curator inbox decline msr_0123456789abcdef --reason consent
    """
    chosen = next((each for each in REASONS if each == reason), None)
    if chosen is None:
        raise typer.BadParameter(f"one of {', '.join(REASONS)}", param_hint="--reason")
    with as_measurer(url, token_file) as client:
        item = client.measurement(measurement)
        body = {"measurement_ids": [item.id], "reason": chosen, "note": note}
        state = client.decline(item.query_id, parsed(wire.DeclineCreate, body, {"note": "--note"}))
    show(state, f"{item.id}: declined; {state.open} of its query still open", as_json)


def _whose(item: wire.InboxItem) -> str:
    in_file = f"record {item.record}" if item.file_row is None else f"row {item.file_row} of the file"
    return ", ".join([*(label.text for label in item.labels), in_file])


def _shown(item: wire.InboxItem) -> str:
    return ", ".join(f"{cell.column} {cell.text}" for cell in item.in_words)


COMMANDS = {"study": study_cli, "grant": grant_cli, "dataset": dataset_cli, "inbox": inbox_cli}
