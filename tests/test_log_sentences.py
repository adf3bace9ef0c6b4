"""Every kind of record that a service writes has a sentence on the page of its log."""

import ast
from pathlib import Path

from curator_service.console import log as curator
from modeler_service.console import log as modeler
from service_kit.console.acts import ACTS, act, who

ROOT = Path(__file__).parents[1]
HOUSEKEEPING = ("archived", "unarchived", "labelled", "deleted")
KINDS = {  # of kinds that are put together, or passed on
    "f'{self.kind}.{act}'": [f"{kind}.{done}" for kind in ("dataset", "study", "run") for done in HOUSEKEEPING],
    "f'{self.noun}.ended'": ["forecast.ended", "tuning.ended"],
    "f'{self.noun}.cancelled'": ["forecast.cancelled", "tuning.cancelled"],
    "f'{kind}.refused'": ["bounds.refused", "tuning.refused"],
    "f'measurement.{kind}'": ["measurement.overdue", "measurement.declined"],
    "f'measurement.{_DONE[act]}'": ["measurement.answered", "measurement.declined", "measurement.corrected"],
    "f'run.{command}_asked'": ["run.pause_asked", "run.stop_asked"],
    "KIND": ["retention.swept"],
    "LEFT_OUT": ["candidates.left_out"],
}  # fmt: skip
PASSED_ON = {  # where a kind arrives as an argument, or in a local, and the kinds that callers give
    "audit_trail.py": ["exchange"],
    "queries.py": ["exchange", "query.all_answered"],
    "inbox.py": ["measurement.answered", "measurement.declined", "measurement.corrected"],
    "webhook_measurer.py": ["measurement.answered", "measurement.declined"],
    "releases.py": ["release.begun", "release.abandoned"],
    "grants.py": ["grant.created", "grant.rotated"],
    "scheduler.py": ["run.paused", "run.ended"],
    "witness.py": ["exchange", "log.disputed", "checkpoint.countersigned"],
}


def _written(folder):
    """The kinds of all records that the code below a folder writes."""
    for file in sorted(folder.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name, given = ast.unparse(call.func), {k.arg: k.value for k in call.keywords}
            kind = given.get("kind") if name.endswith((".record", "partial")) and "details" in given else None
            if name == "Effect" or (name.endswith(".append") and {"actor", "details"} & given.keys()):
                kind = call.args[1] if name in ("Effect", "audit_log.append") else call.args[0]
            if isinstance(kind, ast.Constant):
                yield kind.value
            elif kind is not None:
                written = ast.unparse(kind)
                yield from PASSED_ON[file.name] if written == "kind" else KINDS[written]


def test_every_kind_of_record_has_a_sentence():
    shared = {*_written(ROOT / "shared")}
    assert {"session.opened", "user.added", "log.restored", "retention.swept"} <= shared
    for service, acts in (("curator_service", curator._ACTS), ("modeler_service", modeler._ACTS)):
        kinds = {*_written(ROOT / service)}
        assert len(kinds) > 8
        kinds = {kind for kind in kinds | shared if not kind.startswith(_of_other(service))}
        assert kinds - {*acts, *ACTS} == set()


def _of_other(service):
    return ("run.",) if service == "curator_service" else ("dataset.", "study.")


def test_a_sentence_names_who_acted_and_on_what_and_marks_what_people_typed():
    names = {"usr_1": "olga", "std_1": "<b>HbA1c</b>", "study.released:std_1": "epsilon 2 for each of 1,161 records"}
    said = f"{who('owner:usr_1', names)} {act(curator._ACTS, 'study.released', {'study_id': 'std_1'}, names)}"
    assert said == (
        "<bdi>olga</bdi> (owner) released <bdi>&lt;b&gt;HbA1c&lt;/b&gt;</bdi>: "
        "<bdi>epsilon 2 for each of 1,161 records</bdi>"
    )
    assert act(curator._ACTS, "study.released", {"study_id": "std_2"}, names) == "released <bdi>std_2</bdi>"
    charge = {"study_id": "std_1", "epsilon": "3", "rows": [[5, 1], [7, 2]]}
    assert "epsilon <bdi>3</bdi>" in act(curator._ACTS, "charge", charge, names)
    assert "for <bdi>2</bdi> of its candidates" in act(curator._ACTS, "charge", charge, names)
    exact = act(curator._ACTS, "charge", charge | {"epsilon": "0"}, names)  # which is not how much it reveals
    assert exact.startswith("is sent exact answers about <bdi>&lt;b&gt;")
    assert act(curator._ACTS, "of.another.version", {}, names) is None
