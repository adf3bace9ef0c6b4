"""Bytes of a peer pass ``bodies.parse`` alone: nothing else reads JSON, or unpickles, but what this service wrote."""

import ast

import pytest

from tests.processes import ROOT

READERS = {"validate_json", "model_validate_json", "loads", "from_json", "raw_decode"}
FOLDERS = ("shared/blindopt", "shared/service_kit", "curator_service", "modeler_service")
OWN = {
    "shared/blindopt": """
        Entry.record LogCopy.count_other LogCopy.keys StoredQuery.answer Study._open Study._send StudyChange.study
        _plain first_errors parse
    """,
    "shared/service_kit": """
        Flashes.take LogArchive._written LogVerification._run Program.do Reply.json Reply.parse
        StoredRecords._last_archived StoredRecords.of_kind TerminalLines.format Worker.work _load _manifest
        _read_array _staying add archived_summary check_present problem_of read row_of tags_of view
    """,
    "curator_service": """
        (module) Accounts.accounting AnswerVersion.units AnswerVersions._published BoundsSearch._drawn
        BoundsSearch.find.begin Curator._hides_times Forecasts._view InboxLogSummary._check_measurements
        Labels._read Labels.sealed LoggedStudy.fault Messages._approved Messages.open_records
        Accounts._account Accounts._with_answers ReleasedStudies.of
        Releases._begin.work Sandboxes.make StoredRelease.of Studies.change.effect StudyUse.of
        TuningLogSummary.check Tunings._settle Tunings._view Tunings._work.check_unchanged Tunings._work.read
        Uploads._notes _DatasetLogSummary._fits_its_file _MessageLogSummary.check _ReplyLogSummary._check_refined
        _answered _named_alike _replies _reports _source _view changes_by_study check_release_of column_names
        dataset_view decide decisions_of forecast_request guarantee_kind most_by_row named next_download overlaps_of
        prices_by_study raise_caps reading_of report_of request_of scored_by_program spec_of start_forecast
        second_draws start_tuning undecided view_of
    """,
    "modeler_service": """
        Modeler._view_of Modeler.recommendation Program.run RunRow.settings RunRow.stored_plan RunRow.study_view
        RunWorker.__init__ TrialRow.answer TrialRow.view _MessageExchanges._has_reply _against_choices _exchange
        _field_of _pending_faults _subject _view _with_detail is_cut_off last_fit observations_of takes_time
        _without_list
    """,
}
"""Functions that read rows, files and messages of this service, by where they are."""


def is_reader(node):
    """Whether a node names a function that reads JSON, or calls one that does so of a reply, or unpickles."""
    if isinstance(node, ast.Name):
        return node.id in READERS
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = ast.unparse(node.func)
        return name in ("json.load", "pickle.load") or (node.func.attr == "json" and not node.args)
    return isinstance(node, ast.Attribute) and node.attr in READERS


def readers_in(source, path=()):
    """The names of the functions in a syntax tree that read JSON in another way."""
    for node in ast.iter_child_nodes(source):
        is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_reader(node):
            yield ".".join(path) or "(module)"
        yield from readers_in(node, (*path, node.name) if is_scope else path)


def readers(folder):
    """The same in all modules of a folder."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder).rglob("*.py")))
    return {name for tree in trees for name in readers_in(tree)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_json_is_read_in_another_way_only_where_this_service_wrote_it(folder):
    """A function that reads bytes of a peer calls ``bodies.parse``. One that reads our own is added here."""
    assert readers(folder) - set(OWN[folder].split()) == set()


@pytest.mark.parametrize(
    "line",
    [
        "json.loads(body)",
        "wire.Problem.model_validate_json(body)",
        "_KIND.validate_json(body)",
        "from_json(body)",
        "reply.json()",
        "json.load(file)",
        "pickle.load(file)",
        "list(map(Kind.model_validate_json, lines))",
    ],
)
def test_each_other_way_is_noticed(line):
    assert list(readers_in(ast.parse(f"class A:\n def b(self):\n  return {line}"))) == ["A.b"]
    assert not list(readers_in(ast.parse("bodies.parse(body, wire.Problem); json.dumps(body); model.json_schema()")))
