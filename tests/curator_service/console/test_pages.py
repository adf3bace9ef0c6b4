"""The curator's pages, as a browser without JavaScript meets them."""

import base64
import csv
import hashlib
import io
import json
import re

import pytest

from blindopt import wire
from blindopt.client import Measurer, Owner, StudyClient
from curator_service import console
from tests import console_errors
from tests.curator_service.console.inputs import fields_of, inputs_of
from tests.curator_service.queries.inbox.measured_study import answers_for, open_measured_study

MARKUP, FORMULA, TURNED = '<script>alert("1")</script>', "=HYPERLINK(1)", "עברית"
CSV = "\n".join(
    [f'"{MARKUP.replace(chr(34), chr(34) * 2)}",{FORMULA},{TURNED},y']
    + [f"{i % 7},{i % 5},{(3 * i) % 11},{i % 13}" for i in range(60)]
)
COLUMNS = (MARKUP, FORMULA, TURNED)


def _upload(owner, text, filename="data.csv", **filled):
    owner.get("/datasets/new")
    return owner.submit("/datasets", files={"file": (filename, text.encode())}, **filled)


@pytest.fixture(scope="module")
def dataset(people):
    """A dataset whose columns have hostile names."""
    _upload(people["owner"], CSV, filename=f"{MARKUP}.csv")
    assert people["owner"].status == 200, people["owner"].shown
    return people["owner"].path.rpartition("/")[2]


STEPS = {
    "data": {},
    "features": {"name": f"{FORMULA} {MARKUP}"}
    | {
        f"features.{i}.{field}": value
        for i, upper in enumerate(("6", "4", "10"))
        for field, value in (("column", COLUMNS[i]), ("lower", "0"), ("upper", upper))
    },
    "inbox": {
        "measurement.source": "inbox", "measurement.question": MARKUP, "measurement.unit": "mmHg",
        "measurement.lower": "0", "measurement.upper": "200", "measurement.shown": COLUMNS[0],
    },
    "column": {"measurement.source": "column", "measurement.column": "y"},
    "release": {"release.epsilon": "4", "release.delta": ""},
    "answers": {
        "answers.epsilon": "0.5", "outcomes.lower": "0", "outcomes.upper": "200",
        "budget.epsilon_per_row": "6", "budget.queries": "50",
    },
}  # fmt: skip


def _draft(owner, dataset, source):
    """Walk all steps; the page of the review is open then."""
    owner.get(f"/studies/new?dataset={dataset}")
    for step in ("features", source, "release", "answers"):
        owner.submit("/studies/new", go="next", **STEPS[step])
        assert owner.status == 200, (step, owner.shown[-600:])


def _walk(owner):
    """Go through all steps as they are, and send."""
    for go in ["next"] * 6 + ["create"]:
        owner.submit("/studies/new", go=go)


@pytest.fixture(scope="module")
def study(people, dataset, until):
    """A released study whose y people measure; the modeler's token."""
    owner = people["owner"]
    _draft(owner, dataset, "inbox")
    owner.submit("/studies/new", go="create")
    identity = owner.path.rpartition("/")[2]
    until(lambda: "Check again" in owner.get(f"/studies/{identity}").text)
    owner.submit(f"/studies/{identity}:release", sure="yes", sure_high="yes", sure_chance="yes")
    assert "the study is open" in owner.shown
    owner.get(f"/studies/{identity}/grants")
    owner.submit(f"/studies/{identity}/grants", name=MARKUP)
    return identity, _token(owner)


def _token(owner):
    return re.search(r"blindopt_[0-9a-f]{16}\.[A-Za-z0-9_-]{43}", owner.text).group()


def _ask(service, study, key, *rows):
    with StudyClient(service.url, study[1], study[0]) as modeler:
        pending, _ = modeler.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row) for row in rows]), key=key)
    return pending.id


# --- roles --------------------------------------------------------------------------------------------


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("role", ["owner", "measurer", "auditor"])
def test_a_role_opens_its_own_pages_and_no_others(people, role):
    person = people[role]
    person.get("/")
    token = person.form("/logout")
    for entry in console.build().entries:
        path = entry.path
        for name, value in console_errors.MADE_UP.items():
            path = path.replace(f"{{{name}}}", value)
        if path.endswith("/events"):
            continue
        reply = person.send(entry.method, "/console" + path, data=token if entry.method == "POST" else None)
        if role in entry.roles:
            assert reply.status_code in (200, 400, 404, 422), (path, reply.status_code)
        else:
            assert reply.status_code == 403, path
            assert "not for your role" in person.shown


def steps_of(owner):
    """For each of the first steps that Home lists, its link; done: it is done."""
    listed = owner.get("/").text.partition("First steps")[2].partition("</ol>")[0]
    steps = re.findall(r'<li( class="done")?>(?:<a href="/console([^"]*)">)?', listed)
    return ["done" if is_done else path for is_done, path in steps]


def test_an_empty_home_lists_the_first_steps(people):
    owner, auditor = people["owner"], people["auditor"]
    assert steps_of(owner) == ["/datasets/new", "/studies/new", "", "", "/inbox", ""]
    assert "First steps" not in auditor.get("/").text
    _upload(owner, "a,b\n1,x\n")
    path = owner.path.removeprefix("/console")
    assert steps_of(owner)[0] == path
    owner.get(path)
    owner.submit(f"{path}:discard")


def test_a_measurer_sees_no_name_of_a_dataset_and_an_auditor_no_question(people, service, study):
    _ask(service, study, "roles", 1)
    measurer, auditor = people["measurer"], people["auditor"]
    assert measurer.get("/inbox").status_code == 200
    assert "Budget" not in measurer.shown
    for path in ("/", "/accounts", f"/accounts/{study[0]}", f"/accounts/{study[0]}/exposure", "/log"):
        auditor.get(path)
        assert "Record of the file" not in auditor.shown  # it would undo the secret order
        assert "Measurements wait" not in auditor.shown


# --- hostile content ----------------------------------------------------------------------------------


def test_names_with_markup_are_text_on_every_page_and_no_formula_in_a_file(
    owner, auditor, measurer, service, study, dataset
):
    _ask(service, study, "hostile", 2)
    pages = [
        (owner, path)
        for path in (
            *("/", "/datasets", f"/datasets/{dataset}", "/studies", f"/studies/{study[0]}", "/log"),
            *(f"/studies/{study[0]}/grants", f"/studies/new?from={study[0]}", f"/studies/{study[0]}/forecasts"),
        )
    ]
    pages += [
        (auditor, "/accounts"),
        (auditor, f"/accounts/{study[0]}"),
        (measurer, "/inbox"),
        (measurer, "/inbox/table"),
    ]
    shown = 0
    for person, path in pages:
        assert person.get(path).status_code == 200, path
        assert "<script>alert" not in person.text, path
        assert " style=" not in person.text
        shown += MARKUP in person.shown
    assert shown > 6  # it was there to be escaped
    rows = list(csv.reader(io.StringIO(owner.get(f"/datasets/{dataset}?as=csv").text)))
    assert "'" + FORMULA in [row[0] for row in rows]
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)


# --- forms --------------------------------------------------------------------------------------------


TEXT = ";Größe;cut;day;n\n" + "".join(
    f"{i};{'' if i == 4 else f'{i},5'};{('Good', 'Ideal')[i % 2]};{i + 1:02}.02.2024;{i}\n" for i in range(9)
)


def test_a_file_with_text_gaps_and_dates_is_taken_without_a_second_upload(owner):
    _upload(owner, TEXT, filename="Steine.csv")
    assert re.fullmatch("/console/datasets/uploads/upl_[0-9a-f]{16}", owner.path)
    assert "9 records, 5 columns, separated by semicolons, with a decimal comma" in owner.shown
    assert "4 columns need a decision" in owner.shown
    assert "cut Text: 2 different" in owner.shown
    path = owner.path.removeprefix("/console")
    kept = owner.form(path)
    assert [kept[f"columns.{i}.kind"] for i in range(4)] == ["drop", "number", "drop", "d.m.y"]
    owner.get("/datasets")
    assert "Steine.csv" in owner.text  # it waits
    owner.get(path)
    owner.submit(path, **{"columns.2.kind": "one_hot"})
    assert (owner.status, "Tick this, or read no column by a list" in owner.shown) == (422, True)
    owner.submit(path, lists_public="yes")
    assert owner.status == 200, owner.shown
    assert (
        "Registered: 8 records, 5 columns; 1 more in the file were neither read nor stored; "
        "1 record with a missing value left out" in owner.shown
    )
    for said in ("cut=Good", "cut=Ideal", "days since 1970-01-01", "Good, Ideal", "semicolons"):
        assert said in owner.shown, said
    owner.get(path)
    assert owner.status == 404


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"since": "yesterday"}, "since"),
        ({"columns.2.kind": "one_hot", "columns.2.values": "x" * 101}, "columns.2.values"),
        ({"columns.2.kind": "codes", "columns.2.values": "\n".join(map(str, range(101)))}, "columns.2.values"),
        ({"gaps": "each", "columns.1.missing": "fill", "columns.1.fill": "1e60"}, "columns.1.fill"),
    ],
)
def test_a_decision_that_cannot_be_right_is_marked_where_it_was_made(owner, wrong, where):
    """Found by hand: the page said: columns: for example ["age", "stay"]."""
    _upload(owner, TEXT.replace("8;8", f"{len(str(wrong))};8"), filename="Steine.csv")
    owner.submit(owner.path.removeprefix("/console"), lists_public="yes", **wrong)
    assert owner.status == 422
    assert f'id="e-{where}"' in owner.text
    assert "for example [" not in owner.shown
    owner.submit(f"{owner.path.removeprefix('/console')}:discard")  # few may wait
    assert owner.status == 200, owner.shown


def test_the_same_file_again_needs_a_tick(owner):
    text = "a,b\n1,2\n7,8\n"
    _upload(owner, text, name="First of both")
    _upload(owner, text)
    assert "already registered as First of both" in owner.shown
    path = owner.path.removeprefix("/console")
    owner.submit(path)
    assert (owner.status, "Tick this to register the same file again" in owner.shown) == (422, True)
    owner.submit(path, again="yes")
    assert "Registered: 2 records" in owner.shown


def test_the_features_of_a_wide_table_are_ticked_pasted_counted_and_warned_of(owner):
    header = ",".join(f"s{i}" for i in range(60))
    _upload(owner, f"{header}\n" + "".join(",".join(str(i + row) for i in range(60)) + "\n" for row in range(9)))
    dataset = owner.path.rpartition("/")[2]
    owner.get(f"/studies/new?dataset={dataset}")
    owner.submit("/studies/new", name="wide", go="all")
    assert len(re.findall(r'type="checkbox"[^>]* checked', owner.text)) == 60
    owner.submit("/studies/new", go="none")
    assert not re.search(r'type="checkbox"[^>]* checked', owner.text)
    owner.submit("/studies/new", go="paste", pasted="s0,0,5.5\ns60,1,2")
    assert 'Line 2: no column "s60"; did you mean' in owner.shown
    owner.submit("/studies/new", go="paste", files={"bounds_file": ("b.csv", b"s0;0;5,5\ns60;1;2")})
    assert 'Line 2: no column "s60"; did you mean' in owner.shown
    owner.submit("/studies/new", go="paste", files={"bounds_file": ("b.csv", b"s0;0;5,5\ns3;0;11")})
    kept = owner.form("/studies/new")
    assert (kept["features.0.lower"], kept["features.0.upper"], kept["features.3.upper"], "pasted" in kept) == (
        "0",
        "5.5",
        "11",
        True,
    )
    owner.submit("/studies/new", go="clips")
    assert re.search(r"s0 3 .*s3 0 ", owner.shown), owner.shown  # 6, 7 and 8 lie above 5.5
    assert "Only you see how many" in owner.shown
    owner.submit("/studies/new", go="next")
    assert "A bound of s0 , s3 is exactly the smallest or largest value in your records" in owner.shown


def test_numbers_that_are_codes_are_read_as_categories_where_their_list_is_public(owner, service):
    """Of few different numbers; a column of many is not offered, and numbers is what is proposed."""
    rows = [f"{i / 7},{(1, 2, 5)[i % 3]},{i % 4}" for i in range(30)]
    _upload(owner, "\n".join(["size,kind,y", *rows]), which="some")
    where = owner.path.removeprefix("/console")
    form = owner.form(where)
    assert (form["columns.1.kind"], form["columns.1.values"], "columns.0.column" in form, "columns.0.kind" in form) == (
        "number",
        "1\n2\n5",
        True,
        False,
    )
    owner.submit(where, **{"columns.1.kind": "one_hot"})
    assert (owner.status, "the lists are public" in owner.shown) == (422, True)
    owner.submit(where, lists_public="yes", **{"columns.1.kind": "one_hot"})
    with Owner(service.url, service.token) as api:
        made = api.dataset(owner.path.rpartition("/")[2]).view
    assert [column.name for column in made.columns] == ["size", "kind=1", "kind=2", "kind=5", "y"]
    assert [(column.minimum, column.maximum) for column in made.columns][1:4] == [(0, 1)] * 3


def test_a_file_is_read_again_counted_and_stored_as_it_was_counted(owner):
    """Without a script: the separator of the file is corrected, its marker is a gap, and both counts agree."""
    rows = "".join(f"{i};{'-' if i % 4 == 3 else i};{'?' if i == 5 else i}\n" for i in range(12))
    _upload(owner, f"a;b;c|d\n{rows}", filename="Zeichen.csv", which="some")
    path = owner.path.removeprefix("/console")
    assert "8 of 12 records remain" in owner.shown
    assert "Numbers, but for 3 of 12 filled cells: -" in owner.shown
    wrong = {"separator": "bars", "missing_values": ""}
    owner.submit(f"{path}:read", **wrong)
    assert owner.status == 422  # other rows have no bar
    assert owner.form(f"{path}:read")["separator"] == "bars"
    owner.submit(f"{path}:read", separator="semicolons", missing_values="?\n-")
    assert (owner.status, "8 of 12 records remain" in owner.shown) == (200, True)
    owner.submit(path, go="count", **{"columns.1.kind": "drop"})
    assert "11 of 12 records remain" in owner.shown
    assert owner.form(path)["columns.1.kind"] == "drop"
    owner.submit(path)
    assert "Registered: 11 records, 2 columns; 1 more in the file" in owner.shown


def test_a_sign_that_may_group_thousands_is_asked_for_with_both_readings(owner):
    _upload(owner, "x;n\n2.500;1\n1.000;2\n", filename="Tausend.csv")
    path = owner.path.removeprefix("/console")
    assert "Comma: 2.500 is 2500, 1.000 is 1000 Point: 2.500 is 2.5, 1.000 is 1" in owner.shown
    owner.submit(path)
    assert (owner.status, "Say which sign is decimal" in owner.shown) == (422, True)
    owner.submit(path, sign=",")
    assert (owner.status, "Registered: 2 records, 2 columns." in owner.shown) == (200, True)
    assert "2,500" in owner.shown or "2500" in owner.shown


def test_a_file_that_is_read_with_another_separator_is_asked_for_its_sign(owner):
    _upload(owner, "x, m;n, kg\n1,805;75,125\n1,815;80,250\n", filename="Meter.csv")
    path = owner.path.removeprefix("/console")
    owner.submit(f"{path}:read", separator="commas")
    owner.submit(f"{path}:read", separator="semicolons")
    assert (owner.status, "which sign is decimal" in owner.shown) == (422, True)
    owner.submit(f"{path}:read", separator="semicolons", decimal=",")
    assert (owner.status, "with a decimal comma" in owner.shown) == (200, True)
    owner.submit(f"{path}:discard")


def test_a_column_that_is_unticked_says_no_decimal_sign(owner):
    _upload(owner, "time;a\n8.30;2.500\n9.15;1.000\n", filename="Zeit.csv", which="some")
    path = owner.path.removeprefix("/console")
    owner.submit(path, **{"columns.0.kind": "drop"})
    assert (owner.status, "Comma: 2.500 is 2500, 1.000 is 1000" in owner.shown) == (422, True)
    owner.submit(path, sign=",")
    assert (owner.status, "Registered: 2 records, 1 column" in owner.shown, "2500" in owner.shown) == (200, True, True)


def test_a_pending_file_waits_on_home_for_its_owner_alone_until_it_is_deleted(owner, auditor):
    _upload(owner, "a,b\n1,x\n", filename="Wartend.csv")
    path = owner.path.removeprefix("/console")
    assert f'href="/console{path}"' in owner.get("/").text
    assert "Files that wait for your decision Wartend.csv 1 record, until" in owner.shown
    assert "Wartend" not in auditor.get("/").text
    owner.get(path)
    owner.submit(f"{path}:discard")
    assert "Nothing was stored" in owner.shown
    assert "Wartend" not in owner.get("/").text
    owner.get(path)
    assert owner.status == 404


def test_steps_carry_what_others_hold_and_a_refusal_returns_to_the_step_that_is_wrong(owner, dataset):
    owner.get(f"/studies/new?dataset={dataset}")
    owner.submit("/studies/new", go="next", **STEPS["features"] | {"features.1.upper": "-4"})
    assert owner.status == 422
    assert owner.form("/studies/new")["features.1.upper"] == "-4"
    assert "Must be larger than the lower bound" in owner.shown
    owner.submit("/studies/new", go="next", **{"features.1.upper": "4"})
    owner.submit("/studies/new", go="next", **STEPS["column"])
    owner.submit("/studies/new", go="next", **{"release.epsilon": "0.1234567890123456", "release.delta": ""})
    assert owner.status == 422  # what only the API knows, beside its field
    assert 'id="e-release.epsilon"' in owner.text
    owner.submit("/studies/new", go="back")
    kept = owner.form("/studies/new")
    assert kept["step"] == "measurement"
    assert (kept["name"], kept["measurement.column"]) == (STEPS["features"]["name"], "y")
    assert (kept["features.0.lower"], kept["features.1.upper"]) == ("0", "4")


WITHOUT_INPUT = {
    "person_column": "the dataset has one, or not",
    "release.sample_dataset_id": "an input with more than 20 features",
    "release.radius": "an input with more than 20 features",
    "release.sensitivity": "follows from what nobody can tell; an input where a stored study states it",
    "features.*.scale": "an input where a stored study states it",
    "release.cells.epsilon": "a share of the release's",
    "release_of": "the button of a released study sets it",
    "release.acknowledge_refuted": "an input where a stored study has a refuted mechanism: it is for REST and Python",
    "answers.centre": "the middle of the expected range",
    "answers.value_bound": "half of the expected range",
    "measurement.noise_variance": "the square of the error of one measurement",
}


def test_every_field_of_a_study_has_an_input_on_one_of_its_steps(owner, dataset):
    owner.get("/studies/new")
    names = inputs_of(owner.text)
    owner.get(f"/studies/new?dataset={dataset}")
    names |= inputs_of(owner.text)
    for step in ("features", "column", "release", "answers"):
        owner.submit("/studies/new", go="next", **STEPS[step])
        carried = re.sub(r'<input type="hidden"[^>]*>', "", owner.text)
        names |= inputs_of(carried)
    # A list of numbers has an input for each feature.
    fields = {{"release.cells.parts": "release.cells.parts.*"}.get(path, path) for path in fields_of(wire.StudyCreate)}
    assert fields - names == set(WITHOUT_INPUT)


def test_an_id_in_a_link_or_a_form_is_one_before_it_is_part_of_a_path(owner, dataset, study):
    """Each of these would ask the API something else, with the rights of whoever follows the link."""
    for query in (f"from={study[0]}/account", f"dataset={dataset}/ledger", "dataset=../meta", f"from={study[0]}%3Fx"):
        assert owner.get(f"/studies/new?{query}").status_code == 404
    assert owner.get(f"/studies/new?dataset={dataset}").status_code == 200
    owner.submit("/studies/new", dataset_id=f"{dataset}/ledger")
    assert "There is no such dataset" in owner.shown
    owner.get("/inbox/table")
    sent = owner.form("/logout") | {"_key": "0" * 32, "value_x": "1", "query_x": f"../studies/{study[0]}:close?"}
    assert owner.send("POST", "/console/inbox/table", data=sent).status_code == 404


def test_what_the_form_tells_is_the_study_that_is_made(owner, dataset, service):
    _draft(owner, dataset, "column")
    owner.submit("/studies/new", go="create")
    with Owner(service.url, service.token) as api:
        spec = api.study(owner.path.rpartition("/")[2]).view.spec
    assert spec.name == STEPS["features"]["name"]
    assert [(f.column, f.lower, f.upper, f.hidden_change) for f in spec.features] == [
        (MARKUP, 0, 6, 0.3),  # as suggested: a twentieth of the range
        (FORMULA, 0, 4, 0.2),
        (TURNED, 0, 10, 0.5),
    ]
    assert spec.measurement == wire.ColumnMeasurement(column="y", direction="maximize")
    assert spec.release == wire.AutoRelease(epsilon="4", sensitivity=1.0)
    assert spec.answers == wire.AutoAnswers(mechanism="auto", epsilon="0.5", value_bound=100, centre=100)
    assert spec.budget == wire.Budget(epsilon_per_row="6", queries=50)


def test_a_draft_is_changed_in_its_place_until_somebody_else_has_changed_or_released_it(owner, dataset, service, until):
    _draft(owner, dataset, "column")
    owner.submit("/studies/new", go="create")
    where = owner.path.removeprefix("/console")
    identity = where.rpartition("/")[2]
    with Owner(service.url, service.token) as api:
        made = api.study(identity).view
        owner.get(f"/studies/new?change={identity}")
        assert owner.form("/studies/new")["name"] == made.spec.name
        _walk(owner)
        assert owner.path == "/console" + where
        seen = api.study(identity).view.high_risk  # the check that a change starts may have ended
        assert api.study(identity).view.model_copy(update={"high_risk": seen}) == made.model_copy(
            update={"high_risk": seen}
        )  # all that it holds went through the form
        assert "The draft is changed" in owner.shown

        owner.get(f"/studies/new?change={identity}")
        late = owner.text
        for step in ("data", "features", "column", "release", "answers"):
            more = {"budget.queries": "7"} if step == "answers" else {}
            owner.submit("/studies/new", go="next", **STEPS[step] | more)
        owner.submit("/studies/new", go="create")
        assert api.study(identity).view.spec.budget == wire.Budget(epsilon_per_row="6", queries=7)
        owner.text = late  # a page that was open all the while
        _walk(owner)
        assert owner.status == 422
        assert "was changed since you read it" in owner.shown

        until(lambda: "Check again" in owner.get(where).text)
        now = api.study(identity).view.spec_sha256
        owner.text = owner.text.replace(now, made.spec_sha256)  # the same of the page that releases
        owner.submit(f"{where}:release", sure="yes", sure_high="yes", sure_chance="yes")
        assert "was changed since you read it" in owner.shown
        assert api.study(identity).view.state == "draft"
        owner.submit(f"{where}:release", sure="yes", sure_high="yes", sure_chance="yes")
        assert api.study(identity).view.state == "open"
        assert f"change={identity}" not in owner.text
        owner.get(f"/studies/new?change={identity}")
        _walk(owner)
        assert "only a draft can be changed" in owner.shown


def test_steps_that_were_reached_are_buttons_and_each_line_of_the_review_leads_to_its_step(owner, dataset, service):
    """Found by hand: step numbers were no links, and six times Next led to the caps."""

    def shown():
        return re.search(r'class="current" aria-current="step">(\w+)', owner.text)[1]

    _draft(owner, dataset, "column")
    assert shown() == "Review"
    assert {"Change features", "Change caps"} <= set(re.findall(r'aria-label="(Change \w+)"', owner.text))
    owner.submit("/studies/new", go="to:features")
    assert (owner.status, shown()) == (200, "Features")
    owner.submit("/studies/new", go="to:answers", **{"features.0.lower": "1"})
    assert (owner.status, shown()) == (200, "Answers")
    owner.submit("/studies/new", go="to:features", **{"budget.queries": ""})
    assert (owner.status, shown()) == (200, "Features")  # what is wrong there is said when going on
    assert owner.form("/studies/new")["features.0.lower"] == "1"
    owner.submit("/studies/new", go="to:review")
    assert (owner.status, shown()) == (422, "Answers")
    assert "How many measurements may the vendor query in total?" in owner.shown
    owner.submit("/studies/new", go="next", **{"budget.queries": "50"})
    owner.submit("/studies/new", go="create")
    identity = owner.path.rpartition("/")[2]
    owner.get(f"/studies/new?change={identity}&step=answers")
    assert (owner.status, shown()) == (200, "Answers")
    owner.submit("/studies/new", go="to:review", **{"budget.queries": "60"})
    owner.submit("/studies/new", go="create")
    with service.http() as api:
        assert api.get(f"/v1/studies/{identity}").json()["spec"]["budget"]["queries"] == 60


def test_a_token_is_shown_once(owner, service, study):
    owner.get(f"/studies/{study[0]}/grants")
    owner.submit(f"/studies/{study[0]}/grants", name="another")
    token = _token(owner)
    for path in (f"/studies/{study[0]}/grants", "/log", f"/studies/{study[0]}"):
        owner.get(path)
        assert token not in owner.text
        assert token.partition(".")[2] not in owner.text


def test_the_page_of_a_grant_shows_its_bytes_and_sets_its_quota(owner, service, study):
    path = f"/studies/{study[0]}/grants"
    with service.http() as api:
        grant = api.get(f"/v1{path}").json()["grants"][0]["id"]
    target, field = f"{path}/{grant}/log_quota", f"quota_{grant}"
    owner.get(path)
    assert "of 268 MB added to the logs today (UTC)" in owner.shown
    owner.submit(target, **{field: "1"})
    assert (owner.status, "Enter 2 MB a day or more" in owner.shown) == (422, True)
    for typed, shown in (("5", "of 5 MB added"), ("", "of 268 MB added")):
        owner.get(path)
        owner.submit(target, **{field: typed})
        assert (owner.status, shown in owner.shown) == (200, True)


# --- the inbox ----------------------------------------------------------------------------------------


def test_measurements_are_answered_one_after_another_refused_and_corrected(measurer, service, study):
    query = _ask(service, study, "inbox", 10, 11)
    with service.http() as api:
        mine = api.get("/v1/inbox", params={"query_id": query}).json()["items"]
        measurer.get(f"/inbox?after={mine[0]['seq'] - 1}")
        action = f"/inbox/{mine[0]['id']}:answer"
        measurer.submit(action, value="999")
        assert measurer.status == 422  # beyond what the study says can be
        assert measurer.form(action)["value"] == "999"
        assert "999 mmHg is more than the largest allowed value, 200 mmHg. Not saved." in measurer.shown
        measurer.submit(action, value="120,5")
        assert f"Saved 120.5 mmHg for row {mine[0]['record'] + 1} of the file" in measurer.shown
        assert f"/inbox/{mine[1]['id']}:answer" in measurer.text  # the next one is ready
        measurer.submit(f"/inbox/{mine[1]['id']}:decline", reason="consent", decline_note=MARKUP)
        now = {i["id"]: i for i in api.get("/v1/inbox", params={"query_id": query, "state": "all"}).json()["items"]}
        assert now[mine[0]["id"]]["value"] == 120.5
        assert (now[mine[1]["id"]]["state"], now[mine[1]["id"]]["reason"]) == ("declined", "consent")
        measurer.get(f"/inbox/{mine[0]['id']}")
        measurer.submit(action, value="121")
        assert "It used epsilon 0.5" in measurer.shown
        assert api.get(f"/v1/inbox/measurements/{mine[0]['id']}").json()["version"] == 2


def test_an_answer_that_was_none_is_taken_back_and_another_in_its_place_is_charged(measurer, service, study):
    query = _ask(service, study, "void", 30)
    with service.http() as api:
        (mine,) = api.get("/v1/inbox", params={"query_id": query}).json()["items"]
        where = f"/inbox/{mine['id']}"
        measurer.get(where)
        assert "Cannot be measured" in measurer.shown
        measurer.submit(f"{where}:answer", value="120")
        measurer.get(where)
        assert "Cannot be measured" not in measurer.shown
        measurer.submit(f"{where}:void")
        assert (measurer.status, "A reason is needed" in measurer.shown) == (422, True)
        measurer.submit(f"{where}:void", reason="record", decline_note=MARKUP)
        assert "counts as declined" in measurer.shown
        assert "It used epsilon" not in measurer.shown
        now = api.get(f"/v1/inbox/measurements/{mine['id']}").json()
        assert (now["state"], now["value"], now["reason"], now["note"]) == ("declined", None, "record", MARKUP)
        with StudyClient(service.url, study[1], study[0]) as modeler:
            reply, _ = modeler.query(query)
            assert (reply.version, reply.answers, reply.declined) == (2, [], [30])
        assert "another answer uses epsilon again" in measurer.shown
        measurer.submit(f"{where}:answer", value="121")
        assert "It used epsilon 0.5" in measurer.shown


def test_the_owner_releases_the_mean_that_is_left_by_a_button_and_a_measurer_has_none(
    owner, measurer, service, dataset
):
    features = [wire.Feature(column=column, lower=-1e-3, upper=12345678.9) for column in (MARKUP, TURNED)]
    spec = wire.StudyCreate(
        name="means",
        dataset_id=dataset,
        features=features,
        measurement=wire.InboxMeasurement(question="How much?", direction="maximize"),
        release=wire.AutoRelease(mechanism="auto", epsilon="1"),
        answers=wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0, plays="mean"),
    )
    with Owner(service.url, service.token) as api, Measurer(service.url, service.token) as entering:
        study = api.release(api.create_study(spec).id).id
        token = api.grant(study, wire.GrantCreate(name="m")).token
        with StudyClient(service.url, token, study) as modeler:
            query = modeler.ask(wire.QueryRequest(rows=[wire.RowPlays(row=2, plays=2)]), key="means")[0].id
            first, second = entering.measurements(query_id=query)
            values = [wire.Measured(measurement_id=item.id, value=1.0) for item in (first, second)]
            entering.answer(query, wire.AnswerCreate(values=values))
            where = f"/inbox/{first.id}"
            measurer.get(where)
            assert "the whole mean counts as declined" in measurer.shown
            measurer.submit(f"{where}:void", reason="consent", back="one")
            assert "It used epsilon" not in measurer.shown
            assert modeler.query(query)[0].declined == [2]
            other = f"/inbox/{second.id}"
            for person, has in ((measurer, False), (owner, True)):
                person.get(other)
                assert "The owner can release the mean" in person.shown
                assert (f"{other}:release_mean" in person.text) == has
            owner.submit(f"{other}:release_mean")
            assert "It used epsilon 0.5" in owner.shown
            assert [(answer.row, answer.plays) for answer in modeler.query(query)[0].answers] == [(2, 1)]
            assert "release_mean" not in owner.text


@pytest.mark.parametrize("goal", [wire.FindMany(share=0.1), wire.BEST], ids=["many", "best"])
def test_estimates_of_a_vendor_are_shown_as_such_where_the_study_looks_for_many(measurer, service, small, goal):
    rows = [wire.RowPlays(row=4, probability=0.625), wire.RowPlays(row=2), wire.RowPlays(row=9, probability=0.125)]
    with open_measured_study(small, service, goal=goal) as measured:
        measured.modeler.ask(wire.QueryRequest(rows=rows), key="estimates")
        items = list(measured.measurer.measurements(study_id=measured.study))
        estimates = [item.probability for item in items]
        measurer.get(f"/inbox?study={measured.study}")
        first = measurer.shown
        table = measurer.get(f"/inbox/table?study={measured.study}").text
        sheet = measured.measurer.export_csv(study_id=measured.study).decode("utf-8-sig")
        for item in (items[0], items[2]):
            measured.measurer.answer(item.query_id, answers_for([item], 1.0))
        assert [item.probability for item in measured.items(items[0].query_id)] == [None] * 3
    if goal == wire.BEST:
        assert estimates == [None] * 3
        assert not any("estimate" in page for page in (first, table, sheet))
    else:
        assert estimates == [0.625, None, 0.125]
        assert "The vendor expects 0.75 good outcomes among 2 of the next 3." in first
        assert "62.5 % that it is good" in first
        assert re.findall(r"estimate: ([^<]*) good<", table) == ["62.5 %", "12.5 %"]
        cells = [row["vendor's estimate that it is good"] for row in csv.DictReader(io.StringIO(sheet))]
        assert cells == ["0.625", "", "0.125"]


@pytest.mark.parametrize("page", ["/inbox?after={before}", "/inbox/{id}"])
def test_a_form_of_an_open_measurement_never_corrects_a_value_entered_meanwhile(measurer, service, study, page):
    query = _ask(service, study, f"meanwhile {page}", 12)
    with Measurer(service.url, service.token) as other, Owner(service.url, service.token) as owner:
        (mine,) = other.measurements(query_id=query)
        measurer.get(page.format(before=mine.seq - 1, id=mine.id))
        sent = measurer.form(action := f"/inbox/{mine.id}:answer")
        other.answer(query, wire.AnswerCreate(values=[wire.Measured(measurement_id=mine.id, value=100.0)]))
        before = list(owner.ledger(study[0])), other.measurement(mine.id)
        measurer.send("POST", "/console" + action, data=sent | {"value": "110"})
        assert measurer.status == 409
        assert "Another user answered this measurement" in measurer.shown
        assert (list(owner.ledger(study[0])), other.measurement(mine.id)) == before
        # What is shown now tells the other's value, and corrects that.
        stale = measurer.form(action)
        assert (stale["act"], stale["version"], stale["value"]) == ("correct", "1", "110")
        other.correct(query, wire.AnswerCreate(values=[wire.Measured(measurement_id=mine.id, value=101.0)]))
        measurer.send("POST", "/console" + action, data=stale)
        assert (measurer.status, other.measurement(mine.id).value) == (409, 101.0)


def test_the_same_answer_form_sent_twice_is_one_answer_and_no_error(measurer, service, study):
    query = _ask(service, study, "twice", 13)
    with Measurer(service.url, service.token) as other:
        (mine,) = other.measurements(query_id=query)
        measurer.get(f"/inbox/{mine.id}")
        sent = measurer.form(action := f"/inbox/{mine.id}:answer") | {"value": "110"}
        for _ in range(2):
            measurer.send("POST", "/console" + action, data=sent)
            assert f"Saved 110 mmHg for row {mine.record + 1} of the file" in measurer.shown
        assert other.measurement(mine.id).version == 1


def test_a_table_with_one_wrong_cell_keeps_every_cell_and_stores_nothing(measurer, service, study):
    query = _ask(service, study, "table", 20, 21, 22)
    with service.http() as api:
        mine = [i["id"] for i in api.get("/v1/inbox", params={"query_id": query}).json()["items"]]
        measurer.get("/inbox/table")
        measurer.submit("/inbox/table", **{f"value_{mine[0]}": "50", f"value_{mine[1]}": "a lot"})
        assert measurer.status == 422
        kept = measurer.form("/inbox/table")
        assert (kept[f"value_{mine[0]}"], kept[f"value_{mine[1]}"]) == ("50", "a lot")
        assert [i["id"] for i in api.get("/v1/inbox", params={"query_id": query}).json()["items"]] == mine
        measurer.submit("/inbox/table", **{f"value_{mine[1]}": "60", f"reason_{mine[2]}": "record"})
        assert api.get("/v1/inbox", params={"query_id": query}).json()["items"] == []


def test_a_spreadsheet_is_checked_line_by_line_before_it_is_taken(measurer, service, study):
    _ask(service, study, "sheet", 30)
    rows = list(csv.DictReader(io.StringIO(measurer.get("/inbox/open.csv").text.removeprefix("\ufeff"))))
    assert not any(cell.startswith("=") for row in rows for cell in row.values())

    def sheet(value):
        text = io.StringIO()
        writer = csv.DictWriter(text, ["measurement_id", "value"])
        writer.writeheader()
        writer.writerow({"measurement_id": rows[-1]["measurement_id"], "value": value})
        return {"file": ("filled.csv", text.getvalue().encode())}

    measurer.get("/inbox/import")
    measurer.submit("/inbox/import", files=sheet("lots"), go="check")
    assert measurer.status == 422
    assert "line 2, column value" in measurer.shown
    measurer.submit("/inbox/import", files=sheet("70,250"), go="check")
    assert measurer.status == 422
    assert "70,250 : 70250 with a decimal point, 70.25 with a decimal comma" in measurer.shown
    measurer.submit("/inbox/import", files=sheet("70,0"), go="check")
    assert "Nothing is stored yet" in measurer.shown
    assert "The first values: 70,0 is 70." in measurer.shown
    measurer.submit("/inbox/import", go="store")
    assert "Imported: 1 new." in measurer.shown
    measurer.get("/inbox/import")
    measurer.submit("/inbox/import", files=sheet("70"), go="check")
    assert "1 unchanged" in measurer.shown
    measurer.get("/inbox/import")
    measurer.submit("/inbox/import", files=sheet("71"), go="check")
    assert "1 line differs from what is stored" in measurer.shown
    assert re.search(r"70 mmHg by measurer .* 71 mmHg", measurer.shown)
    measurer.submit("/inbox/import", go="apply")
    assert "Imported: 1 corrected." in measurer.shown


def test_a_comma_before_three_digits_is_asked_back_and_saved_by_a_button(measurer, service, study):
    """Found by hand: 1,034 was stored as 1.034, without a word of it, and left to the vendor."""
    query = _ask(service, study, "comma", 40, 41)
    with Measurer(service.url, service.token) as other:
        mine, second = other.measurements(query_id=query)
        measurer.get(f"/inbox?after={mine.seq - 1}")
        action = f"/inbox/{mine.id}:answer"
        measurer.submit(action, value="1,034")
        assert (measurer.status, "1.034 or 1,034?" in measurer.shown) == (422, True)
        assert other.measurement(mine.id).value is None
        for reading in ("1.034", "1034"):
            assert f'name="reading_value" value="{reading}"' in measurer.text
        sent = measurer.form(action)
        measurer.send("POST", "/console" + action, data=sent | {"value": "55", "reading_value": "1.034"})
        assert other.measurement(mine.id).value == 55  # what the field says now, which is clear
        measurer.get(f"/inbox/{second.id}")
        measurer.submit(f"/inbox/{second.id}:answer", value="1,034")
        sent = measurer.form(f"/inbox/{second.id}:answer")
        measurer.send("POST", f"/console/inbox/{second.id}:answer", data=sent | {"reading_value": "1.034"})
        assert f"Saved 1.034 mmHg for row {second.record + 1} of the file" in measurer.shown
        assert other.measurement(second.id).value == 1.034


def test_the_table_asks_back_too(measurer, service, study):
    query = _ask(service, study, "comma table", 42)
    with Measurer(service.url, service.token) as other:
        (mine,) = other.measurements(query_id=query)
        measurer.get("/inbox/table")
        measurer.submit("/inbox/table", **{f"value_{mine.id}": "1,034"})
        assert (measurer.status, "1.034 or 1,034?" in measurer.shown) == (422, True)
        assert f"Value of row {mine.record + 1} of the file" in measurer.shown
        assert "msr" not in measurer.shown
        measurer.submit("/inbox/table", **{f"reading_value_{mine.id}": "1.034"})
        assert other.measurement(mine.id).value == 1.034


def test_undo_takes_back_what_has_not_left_and_never_charges(measurer, owner, service, study):
    """Where a private answer has left, undo changes nothing: another value would be charged as a correction."""
    query = _ask(service, study, "undo", 43, 44)
    undo = re.compile(r"/console(/inbox/msr_[0-9a-f]{16}:undo\?version=[0-9]+)")
    with service.http() as api, Measurer(service.url, service.token) as other:
        spent = lambda: api.get(f"/v1/studies/{study[0]}/ledger").json()["entries"]  # noqa: E731
        first, second = other.measurements(query_id=query)
        before = len(spent())

        def save(item, value):
            measurer.get(f"/inbox/{item.id}")
            measurer.submit(f"/inbox/{item.id}:answer", value=value)
            return undo.search(measurer.text).group(1)

        measurer.submit(save(first, "70"))
        assert "70 mmHg is taken back" in measurer.shown
        assert other.measurement(first.id).value is None
        save(first, "71")
        stale = save(second, "72")
        assert other.measurement(second.id).costs_again
        measurer.submit(stale)
        assert "Nothing was undone" in measurer.shown
        assert other.measurement(second.id).value == 72
        assert len(spent()) == before
        assert {answer.row for answer in _reply(service, study, query).answers} == {43, 44}


def _reply(service, study, query):
    with StudyClient(service.url, study[1], study[0]) as modeler:
        return modeler.query(query)[0]


def test_an_item_shows_what_was_measured_of_the_record_before_and_that_a_repeat_is_meant(measurer, service, study):
    """Found by hand: record 818 came four times, and nothing said that it had been measured."""
    first = _ask(service, study, "before", 45)
    with Measurer(service.url, service.token) as other, StudyClient(service.url, study[1], study[0]) as modeler:
        (item,) = other.measurements(query_id=first)
        assert item.earlier == []
        other.answer(first, wire.AnswerCreate(values=[wire.Measured(measurement_id=item.id, value=44.25)]))
        again, _ = modeler.ask(wire.QueryRequest(rows=[wire.RowPlays(row=45, plays=2)]), key="before again")
        _, second = other.measurements(query_id=again.id)
        assert [earlier.value for earlier in second.earlier] == [44.25]
        measurer.get(f"/inbox/{second.id}")
        assert "Repeat 2 of 2, on purpose" in measurer.shown
        assert "Measured before 44.25 mmHg" in re.sub(r"\s+", " ", measurer.shown)
        other.decline(again.id, wire.DeclineCreate(reason="consent"))
    measurer.get("/inbox/told?state=declined")
    assert "The person does not agree" in measurer.shown


# --- accounts and the log -----------------------------------------------------------------------------


def test_files_of_the_ledger_and_of_the_log_hold_all_of_it(auditor, service, study):
    with Owner(service.url, service.token) as api:
        lines = list(api.ledger(study[0]))
    reply = [json.loads(line) for line in auditor.get(f"/accounts/{study[0]}/ledger?as=json").text.splitlines()]
    rows = list(csv.DictReader(io.StringIO(auditor.get(f"/accounts/{study[0]}/ledger").text)))
    assert [int(row["seq"]) for row in rows] == [line["seq"] for line in reply] == [line.seq for line in lines]
    body = auditor.get("/log/file?as=json").text
    seqs = [json.loads(line)["seq"] for line in body.splitlines()]
    assert seqs == list(range(len(seqs)))
    kinds = auditor.get("/log/file?as=json&kind=grant.created").text.splitlines()
    assert kinds
    assert all('"kind":"grant.created"' in json.loads(line)["body"] for line in kinds)


def test_the_log_page_verifies_on_request(auditor):
    auditor.get("/log")
    auditor.submit("/log:verify")
    assert re.search(r"Verified: [0-9,]+ records", auditor.shown)
    auditor.get("/")
    assert re.search(r"verified ([0-9,]+) of ([0-9,]+) records", auditor.shown)


def test_the_log_says_to_an_auditor_who_did_what(auditor, study):
    auditor.get(f"/log?group=studies&about={study[0]}")
    assert re.search(r"owner \(owner\) released .*: epsilon 4 for each of \d+ records", auditor.shown)
    auditor.get("/log?group=people")
    assert "auditor (auditor) logged in" in auditor.shown


LISTINGS = {
    "/datasets": "name",
    "/studies": "spec",
    "/accounts": "name",
    "/studies/{study}/grants": "name",
    "/studies/{study}/forecasts": None,
    "/inbox/told": "question",
    "/notices": None,
    "/tunings": None,
}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("where", LISTINGS)
def test_every_listing_is_a_file_of_all_that_it_has(service, owner, study, where):
    if where == "/inbox/told":
        _ask(service, study, "a row for the listing", 4)
    path = where.format(study=study[0])
    whole = owner.get(f"{path}?as=json&state=all&page_size=1")
    items = [json.loads(line) for line in whole.text.splitlines()]
    rows = list(csv.reader(io.StringIO(owner.get(f"{path}?as=csv&state=all").text)))
    assert "attachment" in whole.headers["content-disposition"]
    assert len(rows) == 1 + len(items)
    assert (LISTINGS[where] is None) or all(LISTINGS[where] in item for item in items)
    assert LISTINGS[where] is None or items
    assert not any(cell.startswith(("=", "+", "@", "\t")) for row in rows for cell in row)


def test_a_record_is_withheld_on_the_page_of_its_dataset(people):
    owner = people["owner"]
    _upload(owner, CSV.replace("60", "61") + "\n1,2,3,4", filename="consent.csv")
    path = f"/datasets/{owner.path.rpartition('/')[2]}"
    owner.submit(f"{path}:withhold", file_row="18")
    assert "Withhold row 18 of the file" in owner.shown
    assert "Withheld:" not in owner.shown
    owner.submit(f"{path}:withhold")
    assert "Withheld: row 18 of the file. No study" in owner.shown
    assert "row 18 of the file since" in owner.shown
    owner.submit(f"{path}:withhold", file_row="1000")
    assert owner.status == 422
    assert "the dataset has 61 records" in owner.shown


def test_a_privacy_report_is_a_page_to_print_and_a_signed_file(people, study):
    owner = people["owner"]
    owner.get(f"/studies/{study[0]}")
    owner.submit(f"/studies/{study[0]}:report")
    assert owner.status == 200
    for text in ("What is promised", "Attacks on the release", "by the key of the curator"):
        assert text in owner.shown
    file = base64.b64decode(re.search(r'href="data:application/json;base64,([^"]+)"', owner.text)[1])
    assert hashlib.sha256(file).hexdigest() in owner.shown
    (reported,) = wire.SignedPrivacyReport.model_validate_json(file).report.studies
    assert reported.id == study[0]
    assert [finding.sentence for finding in reported.attacks if finding.sentence not in owner.shown] == []
    assert [sentence for sentence in reported.summary if sentence not in owner.shown] == []


def test_the_page_of_a_record_writes_the_letter_to_its_person(people, study, dataset):
    owner = people["owner"]
    owner.get(f"/studies/{study[0]}")
    owner.submit(f"/studies/{study[0]}:open_record", row="3")
    owner.submit(f"/datasets/{dataset}:letter")
    assert (owner.status, "What was sent about you" in owner.shown) == (200, True), owner.shown[-600:]
    file = base64.b64decode(re.search(r'href="data:application/json;base64,([^"]+)"', owner.text)[1])
    letter = wire.SignedLetter.model_validate_json(file).letter
    assert hashlib.sha256(file).hexdigest() in owner.shown
    assert f"Your epsilon is {letter.epsilon} in total" in owner.shown
    assert "A blurred copy of your data was sent to" in owner.shown


@pytest.mark.parametrize(("delta", "shown"), [("", False), ("1e-6", True)])
def test_what_a_release_of_planar_laplace_means_is_shown_before_it_is_made(owner, dataset, delta, shown):
    owner.get(f"/studies/new?dataset={dataset}")
    for step in ("features", "column"):
        owner.submit("/studies/new", go="next", **STEPS[step])
    owner.submit("/studies/new", go="look", **{"release.mechanism": "planar_laplace", "release.delta": delta})
    assert (owner.status, "What this means" in owner.shown) == (200, True), owner.shown[-600:]
    assert ("except for events that delta allows" in owner.shown) == shown


# --- persons with several rows ------------------------------------------------------------------------

WHO = "<script>alert(1)</script>"
VISITS = f"{WHO},x,y\n" + "".join(f"P-{i % 4},{i % 7},{i % 5}\n" for i in range(12))


@pytest.mark.parametrize(
    ("filled", "fault"),
    [
        ({"person": WHO}, 'id="e-rows_per_person"><bdi>Say how many records of one person to keep'),
        ({"rows_per_person": "2"}, 'id="e-person"><bdi>Name the column of persons'),
        ({"person": WHO, "rows_per_person": "none"}, 'id="e-rows_per_person"><bdi>'),
        ({"person": "nobody", "rows_per_person": "2"}, "no column of the file has this name"),
    ],
)
def test_a_person_column_and_its_rows_belong_together_and_what_was_typed_stays(owner, filled, fault):
    _upload(owner, VISITS, **filled)
    path = owner.path.removeprefix("/console")
    owner.submit(path)
    assert (owner.status, fault in owner.text) == (422, True), owner.shown[-800:]
    kept = owner.form(path)
    assert {name: kept[name] for name in filled} == filled


def test_the_page_of_a_dataset_shows_its_persons_and_withholds_one_without_a_word_of_the_name(owner):
    _upload(owner, VISITS, filename="visits.csv", person=WHO, rows_per_person="2")
    assert "Registered: 8 records, 2 columns" in owner.shown
    assert "4 records left out, because their person has more" in owner.shown
    assert f"Persons Column {WHO} Persons 4 Records per person at most 2 Records left out 4" in owner.shown
    assert "for a person with up to 2 records" in owner.shown
    assert WHO not in owner.text  # escaped
    path = f"/datasets/{owner.path.rpartition('/')[2]}"
    owner.submit(f"{path}:withhold", person="P-9")
    assert (owner.status, "no record of the dataset is this person" in owner.shown) == (422, True)
    owner.get(path)
    owner.submit(f"{path}:withhold", person="P-1")
    owner.submit(f"{path}:withhold")
    assert "Withheld: row" in owner.shown
    assert re.search("Withheld: person [0-9a-f]{8}… since", owner.shown)
    assert "P-1" not in owner.text


BUTTONS = {
    "/datasets/uploads/{upload_id}:discard",
    "/studies/{study_id}:preview",
    "/studies/{study_id}:release",
    "/studies/{study_id}:sandbox",
    "/studies/{study_id}:report",
    "/studies/{study_id}:close",
    "/studies/{study_id}:open_group",  # a study of groups has it, in the place of open_record
    "/studies/new/effect",  # which only the script of a page sends
    "/studies/{study_id}/forecasts/{forecast_id}:cancel",
    "/studies/{study_id}/grants/{grant_id}:rotate",
    "/studies/{study_id}/grants/{grant_id}:revoke",
    "/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke",
    *(f"/datasets/{{dataset_id}}:{act}" for act in ("archive", "unarchive", "delete")),
    *(f"/studies/{{study_id}}:{act}" for act in ("archive", "unarchive", "delete")),
    "/datasets/{dataset_id}:report",
    "/datasets/{dataset_id}:letter",
    "/inbox/{measurement_id}:undo",
    "/inbox/{measurement_id}:release_mean",
    "/inbox/{measurement_id}:try_again",
    "/inbox/system:try_again",
    "/inbox/import",  # takes a file
    "/tunings/{tuning_id}:cancel",
    "/log:verify",
    "/notices:test",
    "/datasets/{dataset_id}:decide",
    "/messages/{message_id}:open_records",
    "/studies/{study_id}:answer_all",
}
"""Targets of forms without a field to type in."""


def test_home_lists_the_next_step_until_a_recommendation_was_decided_about(owner, service):
    with Owner(service.url, service.token) as api, Measurer(service.url, service.token) as measurer:
        dataset = api.upload(b"a,y\n1,2\n3,4\n5,6\n", name="steps", public=True)
        outcome = wire.InboxMeasurement(question="How much?", direction="maximize")
        draft = dataset.study("steps", features={"a": (0, 9)}, outcome=outcome, privacy="public", answers="exact")
        opened = draft.release()
        access = opened.grant("Acme").file
        with StudyClient(service.url, access.token, opened.id) as vendor:
            vendor.ask(wire.QueryRequest(rows=[wire.RowPlays(row=0)]), key="a" * 8)
            (item,) = [item for item in measurer.inbox if item.view.study_id == opened.id]
            item.answer(2.0)
            assert steps_of(owner)[4:] == ["done", ""]
            said = {"kind": "recommendation", "mean": 2.25, "interval": [1.5, 3.0]}
            sent = vendor.send_message(wire.RecommendationMessage(row=0, **said), key="b" * 8)
            vendor.send_message(wire.RecommendationMessage(row=1, **said), key="c" * 8)
        message = f"/messages/{wire.MessageView.model_validate_json(sent).id}"
        assert steps_of(owner) == ["done"] * 5 + [message]
        owner.get(message)
        owner.submit(f"{message}:decide", decision="accepted")
        assert steps_of(owner) == []
        owner.get(message)
        owner.submit(f"/studies/{opened.id}:open_record")
        assert "It was measured once for vendors: 2. The vendor expected 2.25, from 1.5 to 3." in owner.shown
        assert ("Next recommendation" in owner.shown, "Previous recommendation" in owner.shown) == (True, False)
        owner.submit(f"/studies/{opened.id}:open_record")  # the first such form on the page
        assert "Candidate 1 of steps" in owner.shown
        assert "It was never measured for a vendor. The vendor expected 2.25" in owner.shown
        assert "Previous recommendation" in owner.shown


@pytest.mark.slow(sibling="test_start.py::test_no_error_of_any_form_names_a_field_of_the_api_an_id_or_a_path")
@pytest.mark.parametrize("garbage", ["", "-1", "a_b 1.2"])
def test_no_error_of_any_form_names_a_field_of_the_api_an_id_or_a_path(owner, service, study, dataset, garbage):
    """Found by hand: "lower 0: A number is needed", "answers value bound", "errors says what is wrong"."""
    query = _ask(service, study, f"errors{len(garbage)}", 50, 51)
    with Measurer(service.url, service.token) as other:
        mine, answered = other.measurements(query_id=query)
        value = wire.Measured(measurement_id=answered.id, value=70.0)
        other.answer(query, wire.AnswerCreate(values=[value]))
    with StudyClient(service.url, study[1], study[0]) as vendor:
        for number, message in enumerate(
            (wire.RecommendationMessage(row=3), wire.BudgetMessage(more=wire.Budget(queries=5)))
        ):
            vendor.send_message(message, key=f"{number}{garbage}".strip())
    _upload(owner, "name,y\nanna,1\nbert,2\n")
    with Owner(service.url, service.token) as api:
        ids = {
            "dataset_id": [dataset],
            "study_id": [study[0]],
            "measurement_id": [mine.id, answered.id],
            "message_id": [message.id for message in api.messages(only_open=True)],
            "upload_id": [upload.rpartition("/")[2] for upload in {owner.path}],
        }
    entries = console.build().entries
    tuning = f"/tunings/new?validation_dataset_id={dataset}&score.kind=http&go=form&method.name="
    methods = [tuning + name for name in ("gp_ucb_simulated", "kusner_2", "grid_exponential")]
    more = [f"/inbox?after={mine.seq - 1}", f"/studies/new?dataset={dataset}", *methods]
    faults, buttons = console_errors.drive(owner, entries, ids, garbage, more)
    assert faults == {}
    assert buttons == BUTTONS  # a new form is driven, or said to be a button
    for step in ("features", "column", "release", "answers"):
        owner.get(f"/studies/new?dataset={dataset}")
        for before in ("features", "column", "release", "answers"):
            if before == step:
                break
            owner.submit("/studies/new", go="next", **STEPS[before])
        typed = console_errors.seen(owner.text)
        owner.submit(
            "/studies/new",
            go="next",
            **({"features.0.column": COLUMNS[0], "kernel": "yes"} | dict.fromkeys(typed, garbage)),
        )
        assert console_errors.faults_of(owner.text) == [], step
