"""`blindopt-curator`: serve, token, audit, backup, restore, study, grant, inbox, attack, audit-privacy, tune, report.

A command imports what it needs when it runs: `token` and `audit` do without the web framework and the numerics.
"""

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue

from blindopt import bodies, wire
from blindopt.audit.merkle_log import Json
from blindopt.display import counted
from blindopt.formats.text_files import read_text_file
from curator_service.cli import daily, links
from curator_service.cli.program import PROGRAM, as_owner, open_context
from service_kit.cli import streams
from service_kit.cli.main import build, finish
from service_kit.cli.program import CHECK_FAILED, plain_errors, read_json
from service_kit.cli.remote import TokenFile, Url

if TYPE_CHECKING:
    from blindopt.audit.checkpoints import Verifier
    from blindopt.audit.merkle_log import Head

app = build(PROGRAM)
for name, commands in (*daily.COMMANDS.items(), ("link", links.cli)):
    app.add_typer(commands, name=name)


@app.command()
def attack(
    study: Annotated[str, typer.Argument(help="Study id: a draft, or one that was released.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what attackers could learn from a study. Read-only; safe while the service runs.

    A draft is subject on a release that is drawn for this and thrown away, a released study on its published Z. The
    findings depend on the records, so they are for their owner alone.

    Example: blindopt-curator attack std_0123456789abcdef
    """
    from curator_service.releases import attack_preview
    from curator_service.vault import Vault

    with plain_errors():
        settings = PROGRAM.existing()
        with open_context(settings) as context:
            view, findings = attack_preview.on_study(context.database, Vault(settings.data_dir / "files"), study)
    if as_json:
        report = {"study_id": view.id, "state": view.state, "findings": [finding.model_dump() for finding in findings]}
        typer.echo(json.dumps(report, indent=2))
    else:
        typer.echo(_table(view, findings))


def _table(view: wire.StudyOwnerView, findings: list[wire.Finding]) -> str:
    subject = "a trial release" if view.release_id is None else f"release {view.release_id}; what needs more, on trials"
    paragraphs = [f"{view.id} ({view.spec.release.mechanism}, {view.state}): attacks on {subject}", ""]
    if not findings:
        return "\n".join(
            [*paragraphs, "No attack applies: the study has too few rows, or a trial could not be released."]
        )
    paragraphs.append(f"{'attack':17} {'figure':>9}  interval")
    for finding in findings:
        high = "" if finding.high is None else f"{finding.high:.4g}"
        interval = f"{finding.low:.4g} to {high}" if high else f"at least {finding.low:.4g}"
        paragraphs.append(f"{finding.attack:17} {finding.figure:9.4g}  {interval}, {100 * finding.confidence:g} %")
        paragraphs.append(textwrap.indent(f"{finding.unit}", " " * 4))
        paragraphs.append(textwrap.fill(finding.sentence, 100, initial_indent=" " * 4, subsequent_indent=" " * 4))
    return "\n".join(paragraphs)


@app.command("audit-privacy")
def audit_privacy(
    study: Annotated[str, typer.Argument(help="Study id: a draft, or one that was released.")],
    draws: Annotated[int, typer.Option(min=1_000, max=1_000_000, help="Draws of each law.")] = 20_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the signed transcript.")] = False,
) -> None:
    """Compare the noise that a study's release and answers draw with the laws that they promise.

    Reads no record and changes nothing; the service may be running. Exits with 3 if what was drawn contradicts a law.

    Example: blindopt-curator audit-privacy std_0123456789abcdef --draws 20000
    """
    from curator_service.releases.attacks import privacy_audit

    with plain_errors():
        settings = PROGRAM.existing()
        with open_context(settings) as context:
            signed = privacy_audit.audit_study(context, study, draws)
    transcript = signed["transcript"]
    typer.echo(json.dumps(signed, indent=2) if as_json else "\n".join(map(_audit_in_words, transcript["parts"])))
    if transcript["contradicts"]:
        raise typer.Exit(CHECK_FAILED)


def _audit_in_words(part: Json) -> str:
    version = f", version {part['version']}" if "version" in part else ""
    name = f"{part['part']} ({part['mechanism']}{version})"
    if "claimed" not in part:
        return f"{name}: nothing is promised, so there is nothing to check."
    worst = min(part["statistics"], key=lambda each: each["p"])
    verdict = f"what was drawn {part['verdict']}"
    delta = f" with delta {part['claimed']['delta']:g}" if part["claimed"]["delta"] else ""
    sentence = (
        f"{name}: epsilon {part['claimed']['epsilon']}{delta} is promised, and "
        f"{verdict.upper() if part['contradicts'] else verdict}. Draws alone imply epsilon "
        f"{part['least_epsilon']:.3g} or more. The smallest p of {len(part['statistics'])} statistics is "
        f"{worst['p']:.2g} ({worst['statistic']})."
    )
    return textwrap.fill(sentence, 100, subsequent_indent="    ")


@app.command()
def tune(
    request: Annotated[Path, typer.Argument(help="JSON file with the body of POST /v1/tunings.")],
    token_file: TokenFile = None,
    url: Url = None,
    preview: Annotated[bool, typer.Option("--preview", help="Print its cost and guarantee; spend nothing.")] = False,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: a repeated key charges nothing and waits for the same tuning.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report or the result as JSON.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print the whole tuning as JSON: for the owner alone, not to be passed on.")
    ] = False,
) -> None:
    """Choose hyper-parameters privately at a running curator: charge, wait, and print the result that may be published.

    The result is on stdout. The text on stderr, and the output with --whole, is for the owner alone.

    Example: blindopt-curator tune tuning.json --preview
    """
    with plain_errors():
        tuning = read_json(request, wire.TuningCreate, "the body of POST /v1/tunings")
    with as_owner(url, token_file) as owner:
        if preview:
            report = owner.preview_tuning(tuning)
            typer.echo(report.model_dump_json(indent=2) if as_json else _summary(report))
            return
        started = owner.start_tuning(tuning, key=key)
        if not (as_json or whole):
            typer.echo(f"{started.id} is charged\n{_summary(started.report)}", err=True)
        ended = owner.wait_tuning(started.id, timeout_s=_TUNE_WAIT_SECONDS, poll_s=0.2)
    if whole:
        typer.echo(ended.model_dump_json(indent=2))
    elif ended.result is not None:
        typer.echo(ended.result.model_dump_json(indent=2) if as_json else _result(ended.result))
    if private := _for_the_owner(ended):
        typer.echo(private, err=True)
    if ended.state != "completed":
        raise typer.Exit(1)


reports = typer.Typer(no_args_is_help=True, help="Signed privacy reports.")
app.add_typer(reports, name="report")


@reports.command("make")
def make_report(
    identity: Annotated[str, typer.Argument(help="Study id (std_...) or dataset id (ds_...).")],
    token_file: TokenFile = None,
    url: Url = None,
) -> None:
    """Print the privacy report of a study or a dataset at a running curator, as JSON.

    Example: blindopt-curator report make std_0123456789abcdef > report.json
    """
    with as_owner(url, token_file) as owner:
        typer.echo(owner.report(identity).model_dump_json(indent=2))


letters = typer.Typer(no_args_is_help=True, help="Signed letters to a person.")
app.add_typer(letters, name="letter")


_KEY_HELP = "The curator's verifier key, from somewhere else than the file (GET /v1/meta)."


@reports.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="A report, as JSON.")],
    key: Annotated[str | None, typer.Option(help=_KEY_HELP)] = None,
) -> None:
    """Check the signature of a report: offline. Exits with 3 if invalid.

    Example: blindopt-curator report verify report.json
    """
    with plain_errors():
        report = read_json(file, wire.SignedPrivacyReport, "a privacy report").report
        verifier = _checked(file, key, report, "report", wire.REPORT_TITLE)[0]
    about = ", ".join(study.id for study in report.studies) or report.dataset.id
    _echo_valid(f"report of {about}", report, verifier, key)


@letters.command("verify")
def verify_letter(
    file: Annotated[Path, typer.Argument(help="A letter, as JSON.")],
    key: Annotated[str | None, typer.Option(help=_KEY_HELP)] = None,
) -> None:
    """Check the signature of a letter, its total and its proofs: offline. Exits with 3 if invalid.

    Example: blindopt-curator letter verify letter.json
    """
    from blindopt.audit import letters

    with plain_errors():
        letter = read_json(file, wire.SignedLetter, "a letter").letter
        verifier, head = _checked(file, key, letter, "letter", wire.LETTER_TITLE)
        letters.check(letter, head)
    _echo_valid(f"letter of epsilon {letter.epsilon or 'without a bound'}", letter, verifier, key)


def _checked(
    file: Path, key: str | None, document: wire.PrivacyReport | wire.Letter, field: str, title: str
) -> "tuple[Verifier, Head]":
    """The verifier of a signed document's file, and the log's head of its checkpoint."""
    from blindopt.audit import signed_documents
    from blindopt.audit.checkpoints import Verifier

    verifier = Verifier.parse(key or document.log_key).follow(document.checkpoint)[1]
    signed = bodies.parse(read_text_file(file).encode(), JsonValue)
    signed_documents.verify(verifier, title, signed[field], signed["signature"])
    return verifier, verifier.verify(document.checkpoint).head


def _echo_valid(
    subject: str, document: wire.PrivacyReport | wire.Letter, verifier: "Verifier", key: str | None
) -> None:
    typer.echo(f"valid: {subject}, made {document.made_at:%Y-%m-%d %H:%M:%S} UTC, signed by {verifier.vkey}")
    if key is None:
        typer.echo("the key is the one in the file: compare it with the curator's (--key, or GET /v1/meta)", err=True)


_TUNE_WAIT_SECONDS = 7 * 86_400.0


def _summary(report: wire.TuningReport) -> str:
    def number(value: float | None) -> str:
        return "not released" if value is None else f"{value:.4g}"

    delta = "" if report.delta == "0" else f", delta {report.delta}"
    error = number(report.expected_value_error)
    tried = f"{counted(report.points, 'hyper-parameter')}, {counted(report.records, 'record')}"
    paragraphs = [
        f"{report.method}: {tried}, epsilon {report.epsilon}{delta}",
        f"  used so far  {report.spent_epsilon} of {report.cap_epsilon}",
        f"  lambda~       drawn at scale {number(report.index_scale)}; expected gap {number(report.expected_gap)}",
        f"  v~            noise of scale {number(report.value_scale)}; expected error {error}",
        *(textwrap.fill(f"! {caution.message}", 100, subsequent_indent="  ") for caution in report.cautions),
        textwrap.fill(report.guarantee, 100),
    ]
    return "\n".join(paragraphs)


def _result(result: wire.TuningResult) -> str:
    chosen = result.hyperparameters
    values = [] if chosen is None else [f"{name:14} {value:.6g}" for name, value in chosen.items()]
    if result.value is not None:
        values.append(f"{'score':14} {result.value:.6g}")
    return "\n".join(values)


def _for_the_owner(view: wire.TuningView) -> str:
    """Results without protection: why a tuning failed, and how many scores lay outside of the range."""
    if view.result is None:
        return f"{view.id} {view.state}: {view.problem or 'its charge stays'}"
    return f"(for you alone: {view.clipped} scores lay outside the range)" if view.clipped else ""


finish(app, PROGRAM.service)


def main() -> None:
    streams.run(app)
