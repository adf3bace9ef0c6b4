"""Pages about public inputs: cautions, forecasts on public rows with a band, and sandboxes with their label."""

import html
import re

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from curator_service.console import figures
from tests.builders import registered_apart

CSV = "a,b,y\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(12))
USED = {"features.0.column": "a", "features.1.column": "b"}
SANDBOX = "made-up records and outcomes. No person is behind it"
LEAKS = "Choosing by this leaks what is not counted"


@pytest.fixture(scope="module")
def api(service):
    with Owner(service.url, service.token, timeout_s=60) as client:
        yield client


def spec_of(dataset, **changed):
    spec = {
        "name": "inputs",
        "dataset_id": dataset.id,
        "features": [wire.Feature(column=c, lower=0.0, upper=20.0) for c in "ab"],
        "measurement": wire.ColumnMeasurement(column="y", direction="maximize"),
        "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="11", sensitivity=0.5),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0),
        "budget": wire.Budget(epsilon_per_row="12"),
    }
    return wire.StudyCreate(**(spec | changed))


@pytest.fixture(scope="module")
def study(api):
    return api.create_study(spec_of(registered_apart(api, "private", CSV.encode()))).id


def test_a_draft_shows_its_cautions_before_it_is_released_and_after(owner, api, study):
    owner.get(f"/studies/{study}")
    loud, extreme = "which rules out next to nothing", "0.0 is exactly the smallest value of the column"
    for text in (loud, extreme, "for you alone, not stored", ", and accept the cautions"):
        assert text in owner.shown, text
    assert owner.shown.count(loud) == 1
    owner.submit(f"/studies/{study}:release", sure="yes", sure_chance="yes")
    owner.get(f"/studies/{study}/promise")
    assert loud in owner.shown
    assert extreme not in owner.shown
    assert "Cautions that were accepted with it" in owner.shown


def test_higher_caps_that_bring_a_caution_are_raised_by_whoever_accepts_it(owner, api, study):
    page, caps = f"/studies/{study}/caps", lambda: api.study(study).view.spec.budget.epsilon_per_row
    owner.get(page)
    assert "I accept what is said here" not in owner.shown
    owner.submit(page, reason="agreed", **{"budget.epsilon_per_row": "12.5"})
    assert "one record may use epsilon 12.5 in total" in owner.shown
    owner.submit(page, reason="agreed", sure="These caps, of 12.5, are fine", **{"budget.epsilon_per_row": "500"})
    assert "one record may use epsilon 500 in total" in owner.shown
    assert caps() == "12"
    (said,) = re.findall(r'name="sure" value="([^"]+)"', owner.text)
    owner.submit(page, reason="agreed", sure=html.unescape(said), **{"budget.epsilon_per_row": "500"})
    assert caps() == "500"
    owner.get(f"/studies/{study}/promise")
    assert "one record may use epsilon 500 in total" in owner.shown


def test_a_request_for_budget_that_brings_a_caution_is_approved_by_whoever_accepts_it(owner, api, service):
    study = api.create_study(spec_of(registered_apart(api, "asked for more", CSV.replace("11", "12").encode()))).id
    api.release(study)
    token = api.grant(study, wire.GrantCreate(name="v")).token
    more = wire.BudgetMessage(more=wire.Budget(epsilon_per_row="488"))
    with StudyClient(service.url, token, study) as vendor:
        sent = wire.MessageView.model_validate_json(vendor.send_message(more, key="more"))
    page, decide = f"/messages/{sent.id}", f"/messages/{sent.id}:decide"
    caution = "one record may use epsilon 500 in total"

    def approve(**ticked):
        owner.get(page)
        (said,) = re.findall(r'name="sure" value="([^"]+)"', owner.text)
        assert caution in html.unescape(said)
        ticked = {name: value or html.unescape(said) for name, value in ticked.items()}
        owner.send("POST", f"/console{decide}", data=owner.form(decide) | {"decision": "approved"} | ticked)
        return api.study(study).view.spec.budget.epsilon_per_row

    assert approve() == "12"  # without the tick
    assert (owner.status, "Confirm this, or choose lower caps" in owner.shown) == (422, True)
    assert approve(sure="These caps, of 12.5, are fine") == "12"  # nor of other caps
    assert approve(sure="") == "500"
    (decided,) = [m for m in api.messages() if m.id == sent.id]
    assert decided.state == "approved"


def test_the_last_step_of_a_draft_shows_its_cautions(owner, study):
    owner.get(f"/studies/new?from={study}")
    for _ in range(6):
        owner.submit("/studies/new", go="next")
    assert "epsilon is 11" in owner.shown
    assert "Experts advise against these choices" in owner.shown


def test_a_careful_draft_shows_none(owner, api):
    careful = spec_of(
        registered_apart(api, "careful", CSV.encode()),
        features=[wire.Feature(column=c, lower=-1.0, upper=20.5) for c in "ab"],
        release=wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.25),
        answers=wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=5.0),
        budget=wire.Budget(epsilon_per_row="3"),
    )
    owner.get(f"/studies/{api.create_study(careful).id}")
    assert "accept the cautions" not in owner.shown


def test_a_forecast_is_on_public_rows_unless_said_otherwise_and_needs_no_kernel(owner, api, study):
    owner.get(f"/studies/{study}/forecasts")
    assert owner.form(f"/studies/{study}/forecasts")["rows"] == "public"
    assert 'value="records"' not in owner.text  # this study has no kernel
    sent = {"functions": "2", "queries": "2", "epsilons": "1, 2", "mechanisms": "planar_laplace"}
    owner.submit(f"/studies/{study}/forecasts", **sent)
    (forecast,) = api.forecasts(study)
    assert (forecast.spec.rows, forecast.spec.mechanisms) == ("public", ["planar_laplace"])
    api.wait_forecast(study, forecast.id, timeout_s=240)
    owner.get(f"/studies/{study}/forecasts/{forecast.id}")
    assert "made-up records, uniform within the declared bounds" in owner.shown
    assert "the band reaches over three" in owner.shown
    assert "Gap at 0.212" in owner.shown  # 0.15 of the diagonal, sqrt(2)
    cap = api.study(study).view.spec.budget.epsilon_per_row
    assert f"{cap} of a record in total" in owner.shown  # groups, all answered at once
    assert "groups answered at once" in owner.text.partition("<svg")[2]  # a level of the chart
    assert LEAKS not in owner.shown
    assert "depend on your records" not in owner.shown


def test_the_forecast_of_a_draft_is_followed_and_a_new_one_has_as_many_queries_as_its_cap(owner, api, until):
    dataset = registered_apart(api, "followed", CSV.encode())
    spec = spec_of(dataset, budget=wire.Budget(queries=3, epsilon_per_row="12"), name="followed")
    path = f"/studies/{api.create_study(spec).id}"
    owner.get(f"{path}/forecasts")
    assert owner.form(f"{path}/forecasts")["queries"] == "3"
    assert f'data-live="/console{path}/forecast/events" data-page="/console{path}/forecasts"' in owner.text
    until(lambda: "Better than random" in owner.get(f"{path}/forecasts").text)
    assert "data-ended" in owner.text
    owner.get(f"/studies/new?change={path.removeprefix('/studies/')}")
    owner.submit("/studies/new", go="to:answers")
    said = "Groups answered at once, for the same epsilon of a record in total, end "
    until(lambda: said in owner.submit("/studies/new", go="look").text)
    tool = api.check(spec).search
    assert "Groups answered at once, for epsilon 12 of a record in total: " in tool


def test_a_forecast_on_the_records_says_that_choosing_by_it_leaks(owner, api):
    kernel = wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=0.01)
    study = api.create_study(spec_of(registered_apart(api, "k", CSV.encode()), kernel=kernel)).id
    owner.get(f"/studies/{study}/forecasts")
    assert LEAKS in owner.shown
    sent = {"functions": "2", "queries": "2", "epsilons": "1", "mechanisms": "planar_laplace", "rows": "records"}
    owner.submit(f"/studies/{study}/forecasts", **sent)
    (forecast,) = api.forecasts(study)
    api.wait_forecast(study, forecast.id, timeout_s=240)
    owner.get(f"/studies/{study}/forecasts/{forecast.id}")
    assert LEAKS in owner.shown
    assert "the band reaches over three" not in owner.shown


def test_a_sample_must_be_chosen_where_one_is_wanted(owner, study):
    owner.get(f"/studies/{study}/forecasts")
    owner.submit(f"/studies/{study}/forecasts", rows="sample")
    assert owner.status == 422
    assert "A dataset" in owner.shown


def test_the_band_of_the_chart_reaches_over_the_length_scales():
    scales = [{"lengthscale": s, "regret": r, "low": 0.0, "high": 9.0} for s, r in ((1, 0.7), (2, 0.5), (4, 0.2))]
    point = {"mechanism": "auto", "epsilon": "1", "regret": 0.5, "low": 0.4, "high": 0.6}
    assert figures.band(point | {"by_lengthscale": scales}) == (0.2, 0.7)
    assert figures.band(point | {"by_lengthscale": scales[:1]}) == (0.4, 0.6)
    assert figures.band(point | {"by_lengthscale": []}) == (0.4, 0.6)  # of an older version


def test_a_sandbox_is_made_and_labelled_on_every_page_of_it(owner, api, study):
    owner.get(f"/studies/{study}/settings")
    assert SANDBOX not in owner.shown
    owner.submit(f"/studies/{study}:sandbox")
    made = owner.path.rpartition("/")[2]
    sandbox = api.study(made).view
    assert sandbox.sandbox
    assert "This is the sandbox" in owner.shown
    assert SANDBOX in owner.shown
    assert "Make a sandbox" not in owner.shown
    tabs = [f"/studies/{made}{tab}" for tab in ("", "/forecasts", "/promise", "/settings", "/grants")]
    for path in (*tabs, f"/datasets/{sandbox.spec.dataset_id}"):
        owner.get(path)
        assert SANDBOX in owner.shown, path
    for path in ("/studies", "/datasets"):
        owner.get(path)
        assert ">sandbox</span>" in owner.text, path
    owner.get(f"/studies/{made}/grants")
    owner.submit(f"/studies/{made}/grants", name="vendor")
    assert SANDBOX in owner.shown


# --- the release step ---------------------------------------------------------------------------------


@pytest.fixture
def release_step(owner, api):
    """The release step of a new study of two features in 0 to 20."""
    dataset = registered_apart(api, "stepwise", CSV.encode()).id
    owner.get(f"/studies/new?dataset={dataset}")
    bounds = {f"features.{i}.{end}": value for i in (0, 1) for end, value in (("lower", "0"), ("upper", "20"))}
    owner.submit("/studies/new", go="next", **USED, **bounds)
    owner.submit("/studies/new", go="next", **{"measurement.column": "y"})
    return owner


def test_the_release_step_asks_what_nobody_must_find_out_before_any_symbol(release_step):
    page = release_step.shown
    for text in (
        "What must nobody be able to find out about one record?",
        "Small differences",
        "Any one feature",
        "Everything",
    ):
        assert text in page, text
    assert [release_step.form("/studies/new")[f"features.{i}.hidden_change"] for i in (0, 1)] == [
        "1",
        "1",
    ]  # a twentieth of 20
    assert page.index("Nobody can tell") < page.index(
        "epsilon is about" if "epsilon is about" in page else "Privacy dial"
    )
    form = release_step.text.partition("Mechanism and delta</summary>")[0]
    assert "Delta" not in form
    assert 'name="release.delta"' not in form
    assert 'value="po_gp_ucb"' not in release_step.text  # it is for REST and Python
    assert release_step.form("/studies/new")["release.delta"] == ""


def test_bounds_are_suggested_from_the_names_alone(owner, api):
    """Two files with the same header and other records get the same bounds; what was typed stays."""
    bounds = []
    for name, records in (("first", "30,7,1,5\n40,8,2,6"), ("second", "170,99,3,7\n-4,98,4,8")):
        dataset = registered_apart(api, name, f"patient_age,hour,page,percent\n{records}\n".encode()).id
        owner.get(f"/studies/new?dataset={dataset}")
        assert owner.form("/studies/new")["name"] == f"Study 1 on {name}"
        owner.submit("/studies/new", go="clips", **{"features.1.lower": "6", "features.1.upper": "18"})
        form = owner.form("/studies/new")
        bounds.append([(form[f"features.{i}.lower"], form[f"features.{i}.upper"]) for i in range(4)])
        assert [i for i in range(4) if f"features.{i}.column" in form] == []  # what the page filled in is not ticked
    assert bounds[0] == bounds[1] == [("0", "120"), ("6", "18"), ("", ""), ("0", "100")]


def test_more_than_12_features_have_one_rule_and_a_fold_of_exceptions(owner, api):
    names = [f"c{i}" for i in range(13)]
    lines = [",".join([*names, "y"]), *(",".join(str((3 * i + 5 * j) % 17) for j in range(14)) for i in range(30))]
    dataset = registered_apart(api, "thirteen", "\n".join(lines).encode()).id
    owner.get(f"/studies/new?dataset={dataset}")
    owner.submit("/studies/new", go="paste", pasted="\n".join(f"{name},0,20" for name in names))
    owner.submit("/studies/new", go="next")
    owner.submit("/studies/new", go="next", **{"measurement.column": "y"})
    assert owner.form("/studies/new")["hide_share"] == "5"
    assert '<details class="extra"><summary>Exceptions' in owner.text
    owner.submit("/studies/new", go="paste", exceptions="c3, 4\nc9, 2")
    assert '<details class="extra" open><summary>Exceptions' in owner.text
    owner.submit("/studies/new", go="look")
    shown = re.findall(r'<th scope="row"><bdi>(c[0-9]+)</bdi></th>', owner.text)
    assert shown == ["c3", "c9", *(name for name in names if name not in ("c3", "c9"))]  # the most noise first
    first, _, folded = owner.text.partition("8 other features, with no more noise</summary>")
    assert [part.count("</bdi></th>") for part in (first, folded)] == [5, 8]
    owner.submit("/studies/new", go="next")
    owner.submit("/studies/new", go="next", **{"answers.mechanism": "none", "budget.queries": "5"})
    assert "<details><summary>13 features</summary>" in owner.text
    for change, count in (("4", 1), ("2", 1), ("1", 11)):
        assert owner.text.count(f"a change of {change} is hidden") == count


def test_a_draft_of_many_features_names_a_public_sample_of_the_same_kind(owner, api):
    names = [f"e{i}" for i in range(21)]

    def table(seed):
        rows = [[(3 * i + 5 * j * j + seed * j) % 17 for j in range(22)] for i in range(30)]
        return "\n".join(",".join(map(str, row)) for row in [[*names, "y"], *rows]).encode()

    sample = api.register("published embeddings", table(4), public=True)
    dataset = registered_apart(api, "embeddings", table(0)).id
    owner.get(f"/studies/new?dataset={dataset}")
    owner.submit("/studies/new", go="paste", pasted="\n".join(f"{name},0,17" for name in names))
    owner.submit("/studies/new", go="next")
    owner.submit("/studies/new", go="next", **{"measurement.column": "y"})
    assert "A public sample of the same kind" in owner.text
    assert "published embeddings (30 records)" in owner.text
    says = ("For embeddings, see “Less noise on the few axes that matter”", "Columns of the release mix the features")
    for radius, expected in (("", [True, False]), ("9", [False, True])):
        owner.submit("/studies/new", go="look", **{"release.radius": radius})
        assert [words in owner.shown for words in says] == expected
    owner.submit("/studies/new", go="look", **{"release.radius": ""})
    owner.submit("/studies/new", go="next", **{"release.sample_dataset_id": sample.id})
    owner.submit("/studies/new", go="next", **{"answers.mechanism": "none", "budget.queries": "5"})
    assert "It lies on axes of a public sample, in which no record takes part." in owner.text


def test_without_scripts_a_button_shows_what_the_dial_means(release_step):
    """By hand, for epsilon 2, two features and h = 1: sd sqrt(3) h / 2; ln 3 h / 2; 1 / (1 + e^-2)."""
    release_step.submit("/studies/new", go="look", **{"release.epsilon": "2"})
    for text in ("nearly none", "at most 88.1 % sure", "± 0.866 (4.33 %)", ">0.549<", "uses epsilon 2 of each record."):
        assert text in release_step.text, text
    assert "A record of this dataset has used" not in release_step.shown
    assert "predictions correlate by 0.9" in release_step.shown


def test_what_is_protected_is_rounded_down_and_what_is_lost_is_rounded_up(release_step):
    """By hand: ln 3 for epsilon 1 and h = 1 is 1.0986, which was 1.1; 0.6667 and 0.33335 add up to 1.00005."""
    release_step.submit("/studies/new", go="look", **{"release.epsilon": "1"})
    assert ">1.09<" in release_step.text
    groups = {
        "find": "groups",
        "groups.epsilon": "1.3334",
        "groups.again": "2",
        "release.cells.parts.0": "2",
        "release.cells.parts.1": "1",
    }
    release_step.submit("/studies/new", go="look", **groups)
    assert "50 answers about 50 groups use epsilon 1.001 of a record in total" in release_step.shown


def test_the_part_beside_the_dial_follows_the_form_and_draws_and_charges_nothing(release_step, api):
    before = api.checkpoint()
    fields = release_step.form("/studies/new")

    def part(**typed):
        return release_step.send("POST", "/console/studies/new/effect", data=fields | typed).text

    # Two features that hide their ranges: sqrt(2) epsilon by the release. What answers add is not known yet.
    of_ranges = {"hide": "most", "answers.epsilon": "0.1"}
    for epsilon, name in (("0.3", "strong"), ("1", "moderate"), ("3", "weak"), ("5", "nearly none")):
        assert f">{name}</strong>" in part(**of_ranges, **{"release.epsilon": epsilon})
    said = "The hidden change: epsilon 0.3 by the release alone. A whole record: epsilon 0.425, strong. From"
    for answers in ({}, {"answers.epsilon": "5"}, {"answers.mechanism": "none"}):
        shown = re.sub("<[^>]+>", "", part(**of_ranges | {"release.epsilon": "0.3"} | answers))
        assert said in shown
        assert "Answers add to this." in shown.partition(said)[2]
    single = part(**of_ranges | {"release.epsilon": "0.3", "release.promise": "one_feature"})  # both ranges: twice 0.3
    of_one = "The hidden change of one feature: epsilon 0.3 by the release alone. A whole record: epsilon 0.6, strong."
    assert of_one in re.sub("<[^>]+>", "", single)
    by_promise = " ".join(re.sub("<[^>]+>", " ", single).split())  # sqrt(3) / 0.3 and sqrt(2) / 0.3 of a range of 20
    assert "a part of each 0.3 0.425 a ± 115, b ± 115 one feature at a time yours 0.3 0.6 a ± 94.3," in by_promise
    assert ">nearly none</strong>" in part(**{"release.epsilon": "0.3", "answers.epsilon": "0.1"})  # hides a twentieth
    everything = part(hide="everything", **{"release.epsilon": "1"})
    assert "± 49 (245 %)" in everything  # sqrt(3) sqrt(2) 20
    assert "expect no better than random records" in everything
    assert "Enter a change for one feature at least" in part(
        **{"features.0.hidden_change": "", "features.1.hidden_change": ""}
    )
    assert "notice" in part(**{"release.epsilon": "abc"})
    assert api.checkpoint() == before  # nothing is in the log


def test_the_last_studies_of_the_dataset_stand_beside_it(owner, api, study):
    spec = api.study(study).view.spec
    owner.get(f"/studies/new?from={study}&epsilon=4")
    assert owner.form("/studies/new")["release.epsilon"] == "4"  # as a forecast's button does
    assert "The last studies of this dataset" in owner.shown
    assert "As stated before" in owner.shown  # Delta in scaled units, from the API
    assert owner.form("/studies/new")["release.sensitivity"] == str(spec.release.sensitivity)


def test_another_outcome_reads_the_release_of_a_study_and_uses_epsilon_for_its_answers_alone(owner, api, until):
    dataset = registered_apart(api, "outcomes", CSV.encode() + b"\n\n")
    first = api.draft(api.create_study(spec_of(dataset)).id).release(confirm_chance=True).view
    owner.get(f"/studies/{first.id}/settings")
    assert "Use the release of this study" in owner.shown
    owner.get(f"/studies/new?from={first.id}&read=release")
    assert "Only the answers use epsilon" in owner.shown
    owner.submit("/studies/new", name="second", **{"measurement.direction": "minimize"}, go="to:review")
    form = owner.form("/studies/new")
    owner.submit("/studies/new", **{"release.epsilon": "3"}, go="create") if "release.epsilon" in form else None
    (second,) = [study for study in api.studies() if study.spec.name != first.spec.name and study.spec.release_of]
    assert second.spec.release_inputs == first.spec.release_inputs
    assert second.spec.release_of == first.id
    until(lambda: "Check again" in owner.get(f"/studies/{second.id}").text)
    owner.submit(f"/studies/{second.id}:release", sure="yes", sure_high="yes", sure_chance="yes")
    assert "the study is open" in owner.shown
    assert api.study(second.id).view.release_sha256 == first.release_sha256
    answers, caps = {"epsilon": "0.1", "value_bound": 3.0}, {"epsilon_per_row": "12"}
    third = api.study(second.id).another("third", outcome="y", answers=answers, budget=caps)  # from Python
    third = third.release(confirm_chance=True)
    assert (third.view.spec.release_of, third.view.release_sha256) == (first.id, first.release_sha256)
    assert api.account(dataset.id).epsilon == "11"


def test_a_check_begins_with_its_verdict_stays_and_a_high_risk_takes_a_second_tick(owner, api, until):
    spec = spec_of(
        registered_apart(api, "risky", CSV.encode()),
        answers=wire.NoAnswerNoise(mechanism="none"),
        budget=wire.Budget(queries=9),
    )
    draft = api.create_study(spec).id
    owner.get(f"/studies/{draft}")
    owner.submit(f"/studies/{draft}:preview")
    until(lambda: "The check is under way" not in owner.get(f"/studies/{draft}").text)
    verdict, table = owner.shown.index("High risk: "), owner.shown.index("What attacks recover")
    assert verdict < table
    for tab in ("/forecasts", "/promise", "/settings", ""):
        owner.get(f"/studies/{draft}{tab}")
    assert "High risk: " in owner.shown  # Back shows it again
    assert "100 % against 0 % blindly" in owner.text  # a bar says its figures
    owner.submit(f"/studies/{draft}:release", sure="yes", sure_chance="yes")
    assert (owner.status, "Tick this too before you release" in owner.shown) == (422, True)
    assert "The high risk: tick this too" in re.sub("<[^>]+>", "", owner.text)
    owner.submit(f"/studies/{draft}:release", sure="yes", sure_high="yes", sure_chance="yes")
    assert "the study is open" in owner.shown
    assert "High risk: " not in owner.shown


@pytest.mark.slow(sibling="test_a_check_begins_with_its_verdict_stays_and_a_high_risk_takes_a_second_tick")
def test_the_best_kind_of_record_is_priced_before_anything_is_spent_and_its_owner_opens_it(owner, api, until):
    dataset = registered_apart(api, "kinds", CSV.encode() + b"\n")  # a file of its own: the account is the file's
    owner.get(f"/studies/new?dataset={dataset.id}")
    bounds = {f"features.{i}.{end}": value for i in (0, 1) for end, value in (("lower", "0"), ("upper", "20"))}
    owner.submit("/studies/new", go="next", **USED, **bounds)
    owner.submit("/studies/new", go="next", **{"measurement.column": "y"})
    assert "What should the vendor find: the best record, or the best kind of record?" in owner.shown
    chosen = {"find": "groups", "groups.epsilon": "1", "release.cells.parts.0": "2", "release.cells.parts.1": "1"}
    owner.submit("/studies/new", go="look", **chosen)
    assert "50 answers about 50 groups use epsilon 1 of a record in total" in owner.shown
    assert "becomes at most 73.2 % sure" in owner.shown
    owner.submit("/studies/new", go="look", **chosen | {"groups.again": "2"})
    assert "50 answers about 50 groups use epsilon 0.75 of a record in total" in owner.shown
    owner.submit("/studies/new", go="next", **chosen | {"groups.again": "1", "release.min_count": "1"})
    typed = {"outcomes.lower": "-1", "outcomes.upper": "5", "budget.queries": "9"}
    owner.submit("/studies/new", go="next", **typed)
    assert api.account(dataset.id).epsilon == "0"
    assert "1 equal parts, with 1 record or more" in owner.shown
    owner.submit("/studies/new", go="create")
    study = owner.path.rpartition("/")[2]
    spec = api.study(study).view.spec
    assert (spec.release.epsilon, spec.answers.epsilon, spec.budget.epsilon_per_row) == ("0.5", "0.5", "1")
    until(lambda: "Check again" in owner.get(f"/studies/{study}").text)
    owner.submit(f"/studies/{study}:release", sure="yes", sure_high="yes", sure_chance="yes")
    owner.get(f"/studies/{study}/groups")
    assert owner.shown.count("to 10") + owner.shown.count("to 20") >= len(api.study(study).view.report.counts)
    owner.submit(f"/studies/{study}:open_group", row="0")
    assert "is a group of" in owner.shown
    owner.submit(f"/studies/{study}:open_group", row="99")
    assert "No group was opened" in owner.shown


def test_a_draft_of_private_centres_takes_the_epsilon_of_a_forecast_and_keeps_its_other_cap(owner, api):
    """A forecast's epsilon is that of a record in all; the cap on the study in all has no field in the wizard."""
    centres = wire.PrivateCells(kind="private", number=3, epsilon="0.2")
    release = wire.GroupsRelease(mechanism="groups", epsilon="0.5", min_count=1, cells=centres)
    caps = wire.Budget(epsilon_per_row="1", epsilon_total="7", queries=9)
    draft = api.create_study(
        spec_of(registered_apart(api, "centres", CSV.encode() + b"3,3,3\n"), release=release, budget=caps)
    )
    owner.get(f"/studies/new?change={draft.id}&epsilon=2")
    assert owner.form("/studies/new")["groups.epsilon"] == "2"
    for _ in range(3):
        owner.submit("/studies/new", go="next")
    owner.submit("/studies/new", go="create")
    spec = api.study(draft.id).view.spec
    assert (spec.release.epsilon, spec.release.cells.epsilon, spec.answers.epsilon) == ("1", "0.4", "1")
    assert spec.budget == wire.Budget(epsilon_per_row="2", epsilon_total="7", queries=9)


def test_the_chart_of_a_forecast_of_groups_has_the_epsilon_of_a_record_in_all():
    point = {"regret": 0.2, "low": 0.1, "high": 0.3, "by_lengthscale": []}
    for name, spec, said in (
        ("groups", {}, "epsilon of a record in total"),
        ("auto", {"answers": None}, "epsilon of the release"),
        ("auto", {"answers": ["4"]}, "epsilon of answers"),
    ):
        levels = {"mechanism": name, "epsilon": "1", "answers_epsilon": "4"}
        assert said in figures.regret({"points": [point | levels], "spec": spec}).svg


def test_without_a_script_typed_bounds_make_a_feature_and_bounds_of_a_public_list_make_none(api, owner):
    csv = b"level,sex,y\n" + b"".join(b"%d,%s,%d\n" % (i, (b"f", b"m")[i % 2], i) for i in range(20))
    sex = {"column": "sex", "kind": "one_hot", "values": ["f", "m"]}
    dataset = api.upload(csv, name="typed bounds", columns=["level", sex, "y"])
    owner.get(f"/studies/new?dataset={dataset.id}")
    names = [column.name for column in dataset.view.columns]
    form, level = owner.form("/studies/new"), f"features.{names.index('level')}"
    assert [form[f"features.{names.index(f'sex={word}')}.upper"] for word in "fm"] == ["1", "1"]
    owner.submit("/studies/new", go="next", **{f"{level}.lower": "0", f"{level}.upper": "120"})
    carried = owner.form("/studies/new").items()
    ticked = {name: value for name, value in carried if name.startswith("features.") and name.endswith(".column")}
    assert ticked == {f"{level}.column": "level"}
    owner.submit("/studies/new", go="back")
    owner.submit("/studies/new", go="next", drop=(f"{level}.column",))
    assert (owner.status, "Choose at least one feature" in owner.shown) == (422, True)  # a tick taken off stays off
