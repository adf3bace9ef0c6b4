"""A measured record leaves again, less blurred: charged once, drawn once, and bounded as Theorem R says.

The bound is checked by enumeration through the API: each candidate of a release is a world of its own, with its own
noise, whose probability is that of the law which the curator drew from.
"""

import io
import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.budget import ledger
from curator_service.integrity import log_checks
from curator_service.privacy.guarantees import consent
from curator_service.privacy.noise import planar
from curator_service.queries import refinements, table
from curator_service.releases import attack_preview
from curator_service.releases.attacks import trial
from curator_service.releases.attacks.worker import Job, PreviewResult
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import refinement_of
from service_kit.store import audit_log, schema
from tests.builders import BY_HAND, a_study, group_release, laplace
from tests.curator_service.privacy.epsilon_audit import lower_bound
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.replaced_noise import replace_discrete_laplace

PLANAR = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
ONE_FEATURE = PLANAR.model_copy(update={"promise": "one_feature"})
REFINE = wire.Refine(epsilon="2", persons=4)
ROWS = np.random.default_rng(3).uniform(0, 1, (24, 2))


class Refining(InProcessCurator):
    """A curator whose owner and measurers have the consent of all persons."""

    def release(self, study, **confirmed):
        return super().release(study, confirm_consent=True, **confirmed)

    def enter(self, verb, query, items, *values, **fields):
        return super().enter(verb, query, items, *values, **({"consent": True} if verb == "answer" else {}) | fields)


@pytest.fixture
def curator(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s" * 32, encoding="utf-8")
    opened = Refining(tmp_path, notify_url="http://127.0.0.1:9/", notify_secret_file=secret, notify_events="budget_80")
    yield opened
    opened.close()


def csv_of(rows, persons=None):
    """A file of these rows of features with an outcome, and whose each row is."""
    header = [*(f"x{i}" for i in range(len(rows[0]))), "y", *(["who"] if persons is not None else [])]
    body = [
        [*(repr(float(value)) for value in row), repr(0.5 + i / 1000), *([persons[i]] if persons is not None else [])]
        for i, row in enumerate(rows)
    ]
    return "\n".join(",".join(cells) for cells in (header, *body)) + "\n"


def study(dataset, **more):
    return a_study(**{"release": PLANAR, "d": 2, "dataset_id": dataset, "refine": REFINE} | more)


def query(curator, study_id, rows, modeler="modeler", key=None, plays=1):
    """The reply to a query."""
    body = {"rows": [{"row": row, "plays": plays} for row in rows]}
    return curator.send(modeler, "POST", f"/v1/studies/{study_id}/queries", json=body, key=key)


def second_draws(reply):
    assert reply.is_success, reply.text
    return {item["row"]: item["z"] for item in reply.json().get("refined", [])}


def charges(curator, study_id):
    """How many charges of each kind there are about each candidate."""
    entries = curator.call("owner", "GET", f"/v1/studies/{study_id}/ledger?page_size=1000")["entries"]
    return Counter((entry["kind"], entry["row"]) for entry in entries)


def stored_draws(curator, study_id):
    with curator.context.database.read() as db:
        return table.second_draws(db, study_id, range(1_000))


# --- which studies may refine -----------------------------------------------------------------------

REFUSED = {
    "groups": ({"release": group_release(parts=(2, 2)), "answers": laplace()}, "refine", "groups sends no record"),
    "gaussian": (
        {"release": wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)},
        "refine",
        "this release is gaussian",
    ),
    "axes": (
        {"release": wire.AxesRelease(mechanism="axes", epsilon="1", delta=1e-5, axes="private", radius=9.0)},
        "refine",
        "this release is axes",
    ),
    "published": (
        {"release": wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)},
        "refine",
        "this release is po_gp_ucb",
    ),
    "rotated": (
        {"release": PLANAR.model_copy(update={"rotate": True})},
        "release.rotate",
        "does not keep the rotation",
    ),
    "another person each": ({"measurement": BY_HAND, "privacy_unit": "answer"}, "privacy_unit", "must be row"),
    "without a cap on persons": ({"refine": wire.Refine(epsilon="2")}, "refine.persons", "is missing"),
    "a cap of one answer": (
        {"answers": laplace("1"), "budget": wire.Budget(epsilon_per_row="3")},
        "budget.epsilon_per_row",
        "the release, a second draw and one answer use more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_studies_are_refused_in_words(name, curator):
    changed, field, words = REFUSED[name]
    draft = study(curator.register(csv_of(ROWS)), **changed).model_dump(mode="json")
    reply = curator.send("owner", "POST", "/v1/studies", json=draft)
    assert (reply.status_code, [(error["field"], words in error["message"]) for error in reply.json()["errors"]]) == (
        422,
        [(field, True)],
    )


def test_without_a_cap_on_persons_it_is_that_on_queries_and_no_later_raise_raises_it(curator):
    budget = wire.Budget(queries=3)
    study_id = curator.release(study(curator.register(csv_of(ROWS)), refine=wire.Refine(epsilon="2"), budget=budget))
    raised = {"budget": {"queries": 30}, "reason": "more"}
    curator.call("owner", "PUT", f"/v1/studies/{study_id}/budget", json=raised)
    assert curator.call("owner", "GET", f"/v1/studies/{study_id}")["spec"]["refine"]["persons"] == 3
    assert query(curator, study_id, [0, 1, 2]).is_success
    assert query(curator, study_id, [3]).json()["budget"]["cap"] == "refine.persons"
    assert query(curator, study_id, [2]).is_success


# --- once for each record ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{}, {"answers": laplace("0.01"), "release": ONE_FEATURE}, {"reply_after_ms": 1}], ids=str
)
def test_a_hundred_queries_of_a_record_by_two_grants_get_one_second_draw(more, curator):
    study_id = curator.grant(curator.release(study(curator.register(csv_of(ROWS)), **more)), "other")
    sent = [query(curator, study_id, [5], ("modeler", "other")[n % 2], key=f"k{n}") for n in range(99)]
    sent += [query(curator, study_id, [5], key="k0"), query(curator, study_id, [7, 5, 7], plays=2)]
    assert {tuple(second_draws(reply)[5]) for reply in sent} == {tuple(stored_draws(curator, study_id)[5])}
    assert list(second_draws(sent[-1])) == [7, 5]
    counted = charges(curator, study_id)
    assert (counted["refine", 5], counted["refine", 7], counted["answers", 5]) == (1, 1, 100)
    with curator.context.database.read() as db:
        law = refinement_of(curator.curator.released.of(db, study_id).spec).law(2)
    grid, view = law.sd, curator.call("modeler", "GET", f"/v1/studies/{study_id}")
    assert (law.family, grid) == (view["noise"]["family"], view["refine"]["sd"])
    assert grid == pytest.approx(math.sqrt(2 if "release" in more else 3) / 2)
    steps = np.array(list(stored_draws(curator, study_id).values())) / 2.0 ** (math.frexp(grid)[1] - 17)
    assert np.array_equal(steps, np.rint(steps))
    curator.check()


def test_people_measure_and_a_second_draw_leaves_with_a_first_answer_only(curator):
    """Declined: charged, not drawn. Late: drawn then. A correction repeats it, and no void recalls it."""
    study_id = curator.release(study(curator.register(csv_of(ROWS)), measurement=BY_HAND))
    query_id = curator.ask(study_id, [1, 2, 3])
    items = curator.items(query_id)
    assert stored_draws(curator, study_id) == {}
    declined = {"reason": "consent", "measurement_ids": [items[2]["id"]]}
    assert curator.enter("answer", query_id, items[:2], 0.1, 0.2).is_success
    curator.call("measurer", "POST", f"/v1/queries/{query_id}:decline", json=declined)
    first = curator.reply(study_id, query_id)
    assert [item.row for item in first.refined] == [1, 2]
    assert charges(curator, study_id)["refine", 3] == 1
    assert curator.enter("correct", query_id, items[:1], 0.9).is_success
    assert curator.reply(study_id, query_id).refined == first.refined
    assert curator.enter("answer", query_id, items[2:], 0.3).is_success  # late
    late = curator.reply(study_id, query_id)
    assert late.refined[:2] == first.refined
    assert [item.row for item in late.refined] == [1, 2, 3]
    void = {"void": [items[0]["id"]], "reason": "record"}
    curator.call("measurer", "POST", f"/v1/queries/{query_id}:correct", json=void)
    assert curator.reply(study_id, query_id).refined == late.refined[1:]
    again = curator.ask(study_id, [1])
    assert curator.enter("answer", again, curator.items(again), 0.1).is_success
    assert curator.reply(study_id, again).refined == first.refined[:1]
    assert [n for (kind, _), n in charges(curator, study_id).items() if kind == "refine"] == [1, 1, 1]
    curator.check()


def test_nothing_leaves_once_more_without_consent(curator):
    """People read it before they measure; where nobody does, the owner confirms it before the release."""
    feature = wire.Feature(column="x0", lower=0.0, upper=1.0, hidden_change=0.25)
    dataset = curator.register(csv_of(ROWS))
    by_hand = study(dataset, measurement=BY_HAND, features=[feature])
    study_id = InProcessCurator.release(curator, by_hand)
    query_id = curator.ask(study_id, [1])
    (item,) = curator.items(query_id)
    assert "between two values of yours, x0 0.25 apart, becomes surer than 73.2 %." in item["consent"]
    assert "less blurred copy: then 95.3 %." in item["consent"]
    with_delta = by_hand.model_copy(update={"release": PLANAR.model_copy(update={"delta": 1e-6})})
    assert "surer than 73.2 %, except for events that delta 1e-06 allows." in consent(with_delta)
    for of_several, before, after in (({"person_column": True}, "73.2", "99.4"), ({}, "88.1", "99.8")):
        words = consent(by_hand.model_copy(update={"rows_per_person": 2, **of_several}))
        assert (f"surer than {before} %." in words, f"then {after} %." in words) == (True, True), words
    refused = curator.enter("answer", query_id, [item], 0.5, consent=False)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "consent")
    sheet = {"content": f"measurement_id,value\n{item['id']},0.5\n", "headers": {"Content-Type": "text/csv"}}
    assert curator.send("measurer", "POST", "/v1/inbox:import", **sheet).status_code == 422
    assert curator.send("measurer", "POST", "/v1/inbox:import?consent=true", **sheet).status_code == 201
    assert len(curator.reply(study_id, query_id).refined) == 1
    draft = curator.draft(study(dataset))
    refused = curator.send("owner", "POST", f"/v1/studies/{draft['id']}:release")
    assert (refused.status_code, "confirm_consent" in refused.json()["detail"]) == (409, True)
    curator.check()


def test_a_withheld_record_is_charged_nothing_and_one_that_was_charged_before_sends_no_second_draw(curator):
    dataset = curator.register(csv_of(ROWS))
    study_id = curator.release(study(dataset, measurement=BY_HAND))
    pending = curator.ask(study_id, [4])
    with curator.context.database.read() as db:
        released = curator.curator.released.of(db, study_id)
    for row in (4, 6):
        curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": released.record(row)})
    assert (curator.reply(study_id, pending).declined, curator.reply(study_id, pending).refined) == ([4], [])
    other = curator.ask(study_id, [6])
    assert curator.reply(study_id, other).refined == []
    counted = charges(curator, study_id)
    assert (counted["refine", 4], counted["refine", 6], stored_draws(curator, study_id)) == (1, 0, {})
    curator.check()


def test_persons_are_counted_by_their_first_record_and_refusals_tell_a_grant_nothing_of_others(curator):
    persons = [f"p{i // 3}" for i in range(24)]
    dataset = curator.register(csv_of(ROWS, persons), person="who", rows_per_person="3")
    study_id = curator.grant(curator.release(study(dataset, refine=wire.Refine(epsilon="2", persons=2))), "other")
    with curator.context.database.read() as db:
        of_person = curator.curator.released.of(db, study_id).rows_of_person
    people = list({of_person(row)[0]: list(of_person(row)) for row in range(24)}.values())
    for row in (*people[0], *people[1]):
        assert not curator.call("owner", "GET", "/v1/notices")["notices"] or row in people[1][1:]
        assert query(curator, study_id, [row]).is_success
    (notice,) = curator.call("owner", "GET", "/v1/notices")["notices"]
    subject, counts = notice["notice"]["subject"], notice["notice"]["counts"]
    assert (subject["cap"], subject["study_id"], counts["percent"]) == ("refine.persons", study_id, 100)
    refused = query(curator, study_id, [people[2][0]], "other")
    assert refused.status_code == 403
    assert refused.json()["budget"] == {"requested": "1", "spent": "0", "remaining": "none"}
    assert query(curator, study_id, [people[1][2]], "other").is_success
    report = curator.call("owner", "GET", f"/v1/studies/{study_id}/accounting")
    assert [(kind["rows"], kind.get("refined", 0)) for kind in report["rows"]] == [(6, 0), (1, 3), (1, 3)]
    assert report["sentence"].endswith("The features have used epsilon 1 of everybody, and 7 of 2 measured persons.")
    curator.check()


def test_a_verification_with_the_files_counts_persons_and_not_their_records(curator, monkeypatch):
    """Three persons with a record each, of two who may be measured: fewer records than two persons have."""
    dataset = curator.register(csv_of(ROWS, [f"p{i // 3}" for i in range(24)]), person="who", rows_per_person="3")
    study_id = curator.release(study(dataset, refine=wire.Refine(epsilon="2", persons=2)))
    with curator.context.database.read() as db:
        of_person = curator.curator.released.of(db, study_id).rows_of_person
    first, second, third = list({of_person(row)[0] for row in range(24)})[:3]
    assert query(curator, study_id, [first, second]).is_success

    def findings():
        with curator.context.database.read() as db:
            records = (entry.record for entry in audit_log.walk(db))
            return [str(finding) for finding in log_checks.findings(db, records, folder=curator.settings.data_dir)]

    assert findings() == []
    monkeypatch.setattr(ledger, "_check_persons", lambda *_: None)
    assert query(curator, study_id, [third]).is_success
    curator.check()
    assert findings() == ["more persons were measured again than its owner allows"]


def test_account_exposure_and_price_say_what_two_kinds_of_persons_use(curator):
    dataset = curator.register(csv_of(ROWS))
    budget = wire.Budget(epsilon_per_row="4", queries=9)
    study_id = curator.release(study(dataset, answers=laplace("0.5"), budget=budget), confirm_chance=True)
    assert query(curator, study_id, [0, 1]).is_success
    assert query(curator, study_id, [0]).is_success
    refused = query(curator, study_id, [0]).json()["budget"]
    assert (refused["cap"], refused["requested"], refused["spent"]) == ("epsilon_per_row", "0.5", "4")
    rows = curator.call("owner", "GET", f"/v1/studies/{study_id}/accounting")["rows"]
    assert [(kind["epsilon"], kind["rows"], kind.get("refined")) for kind in rows] == [
        ("1", 22, None),
        ("3.5", 1, 1),
        ("4", 1, 1),
    ]
    account = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
    assert [(share["epsilon"], share["units"]) for share in account["losses"]] == [("4", 1), ("3.5", 1), ("1", 22)]
    exposed = curator.call("owner", "GET", f"/v1/studies/{study_id}/exposure")["rows"]
    assert [(row["epsilon"], row["spent"], row["refined"]) for row in exposed] == [
        ("3", "4", True),
        ("2.5", "3.5", True),
    ]
    price = curator.call("owner", "GET", f"/v1/studies/{study_id}")["report"]["price"]
    assert (price["answers_per_row"], price["row_epsilon"]) == (2, "4")
    assert "epsilon 1 of everybody, and 3 of the 4 persons who may be measured" in price["sentence"]
    curator.check()


def test_what_the_owner_reads_before_the_release_counts_second_draws(curator):
    """A draft of (1, 3) with five answers of 0.1: no word of it is that of a study without second draws."""
    refine, budget = wire.Refine(epsilon="3", persons=4), wire.Budget(queries=5)
    features = [wire.Feature(column="x0", lower=0.0, upper=1.0, hidden_change=0.5)]
    spec = study(
        curator.register(csv_of(ROWS)), refine=refine, budget=budget, answers=laplace("0.1"), features=features
    )
    checked = curator.call("owner", "POST", "/v1/studies:check", json=spec.model_dump(mode="json"))
    assert (checked["epsilon_hidden"], checked["epsilon_whole"], checked["strength"]) == (4.5, 8.5, "nearly none")
    assert checked["surest"] == pytest.approx(1 / (1 + math.exp(-4)))
    assert "With the second draw of a measured record: at most 98.3 % sure. Answers add to this." in checked["belief"]
    both = [feature.model_copy(update={"column": column}) for feature in features for column in ("x0", "x1")]
    single = spec.model_copy(update={"release": ONE_FEATURE, "features": both})
    checked = curator.call("owner", "POST", "/v1/studies:check", json=single.model_dump(mode="json"))
    assert (checked["epsilon_hidden"], checked["epsilon_whole"]) == (4.5, 16.5)  # both over twice their hidden changes
    assert "at most 98.3 % sure. If two features differ so at once: practically certain." in checked["belief"]
    tried = PreviewResult(Assessment(), dict.fromkeys(trial.ATTACKS))
    for each in (refine, None):
        drafted = spec.model_copy(update={"refine": each})
        job = Job(study=drafted, release=spec.release, records=Path(), columns=[0], outcome=1, seconds=1.0)
        words = attack_preview.preview_of(job, tried).not_tried
        assert ("what second draws of measured records show, which use epsilon 3 each" in words) == (each is not None)


def test_an_erasure_overwrites_second_draws_and_their_charges_stay(curator):
    dataset = curator.register(csv_of(ROWS))
    study_id = curator.release(study(dataset))
    assert query(curator, study_id, [2]).is_success
    for act in (f"studies/{study_id}:close", f"datasets/{dataset}:archive", f"datasets/{dataset}:erase"):
        curator.call("owner", "POST", f"/v1/{act}")
    with curator.context.database.read() as db:
        assert [row.z for row in db.execute(table.refinements.select())] == [""]
    assert charges(curator, study_id)["refine", 2] == 1
    curator.check()


TAMPERED = {
    "another second draw": "UPDATE refinements SET z = '[0.5, 0.5]'",
    "a second draw is gone": "DELETE FROM refinements WHERE row = 2",
    "a second draw too many": "INSERT INTO refinements SELECT study_id, 9, z FROM refinements WHERE row = 2",
    "a line is gone": "DELETE FROM ledger WHERE kind = 'refine' AND row = 3",
    "a line of another record": "UPDATE ledger SET row = 9 WHERE kind = 'refine' AND row = 3",
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_second_draw_or_line_is_found(name, curator):
    study_id = curator.release(study(curator.register(csv_of(ROWS))))
    assert query(curator, study_id, [2, 3]).is_success
    curator.check()

    def edit(db):
        with schema.unguarded(db, "ledger" if "ledger" in TAMPERED[name] else "refinements"):
            assert db.exec_driver_sql(TAMPERED[name]).rowcount > 0

    curator.context.database.write(edit)
    with pytest.raises(LogBroken):
        curator.check()


# --- Theorem R, by enumeration through the API --------------------------------------------------------

STEPS = 16
"""Lattice steps in the hidden change, of the release."""


def masses(scale, steps):
    """The probability of each number of steps under discrete Laplace noise."""
    ratio = math.exp(-1 / scale)
    return {n: (1 - ratio) / (1 + ratio) * ratio ** abs(n) for n in steps}


def transcripts(folder, monkeypatch, x, rule, release=PLANAR, first=range(-32, 33, 4), second=range(-64, 65, 8)):
    """By transcript of a record at ``x``: its probability, and the epsilon that the ledger has charged the record.

    A candidate that the vendor's ``rule`` queries because of its release has a second draw in its transcript.
    """
    noises, used = list(product(first, second)), defaultdict(list)

    def draw(count, scale):
        """The noise of all candidates in the order of the release, then of those that are queried."""
        used[scale] += [None] * count
        column = 0 if len(used) == 1 else 1
        steps = [noises[row][column] for row in to_draw[:count]]
        del to_draw[:count]
        return np.array(steps, dtype=np.int64)

    to_draw = list(range(len(noises)))
    monkeypatch.setattr(planar, "LATTICE_BITS", int(math.log2(STEPS)))
    replace_discrete_laplace(monkeypatch, planar, draw)
    curator = Refining(folder)
    dataset = curator.register(csv_of([[x]] * len(noises)))
    refine = wire.Refine(epsilon="2", persons=len(noises))
    feature = wire.Feature(column="x0", lower=-8.0, upper=8.0, scale=1.0)
    study_id = curator.release(study(dataset, release=release, features=[feature], refine=refine))
    z = np.load(io.BytesIO(curator.send("modeler", "GET", f"/v1/studies/{study_id}/candidates").content))[:, 0]
    chosen_rows = [row for row in range(len(z)) if rule(z[row])]
    refined = {}
    for start in range(0, len(chosen_rows), 50):
        to_draw[:] = chosen_rows[start : start + 50]
        refined |= second_draws(query(curator, study_id, chosen_rows[start : start + 50]))
    epsilons = defaultdict(float)
    for (kind, row), n in charges(curator, study_id).items():
        epsilons[row] += {"release": 1.0, "refine": 2.0}.get(kind, 0.0) * n
    curator.close()
    law_1, law_2 = (masses(scale, steps) for scale, steps in zip([*used, 1.0][:2], (first, second), strict=True))
    worlds, charged = defaultdict(float), {}
    for row, (u1, u2) in enumerate(noises):
        seen = (z[row], *(refined.get(row) or ()))
        # Where nothing leaves again, all second noises make one transcript: they add up to its probability.
        worlds[seen] += law_1[u1] * law_2[u2] if row in refined else law_1[u1] / len(second)
        charged[seen] = epsilons[None] + epsilons[row]
    return worlds, charged


def losses(tmp_path, monkeypatch, rule, **more):
    """Of each transcript that both values of a record allow: how far its odds move, and what the ledger charged."""
    (first_world, charged), (other_world, _) = (
        transcripts(tmp_path / name, monkeypatch, x, rule, **more) for name, x in (("a", 0.0), ("b", 1.0))
    )
    return [
        (abs(math.log(first_world[seen] / other_world[seen])), charged[seen], seen)
        for seen in first_world.keys() & other_world.keys()
    ]


def is_large(z):
    return z >= 0


def test_a_transcript_moves_the_odds_of_a_record_by_what_the_ledger_charged_it(tmp_path, monkeypatch):
    """A vendor that queries a candidate because of its release: epsilon 1 without, and 3 with the record's query."""
    moved = losses(tmp_path, monkeypatch, is_large)
    for loss, charged, _ in moved:
        assert loss <= charged
    most = {charged: max(loss for loss, of, _ in moved if of == charged) for _, charged, _ in moved}
    assert most.keys() == {1.0, 3.0}
    assert most[1.0] > 0.9
    assert most[3.0] > 2.8


def test_a_second_draw_that_is_steeper_than_it_says_is_caught(tmp_path, monkeypatch):
    """The control: epsilon 2.4 for 2."""
    steeper = wire.amount("2.4")
    monkeypatch.setattr(refinements, "refinement_of", lambda spec: replace(refinement_of(spec), epsilon=steeper))
    moved = losses(tmp_path, monkeypatch, is_large, second=range(-128, 129, 16))
    assert max(loss - charged for loss, charged, _ in moved) > 0.2


def test_a_second_draw_without_its_line_is_caught(tmp_path, monkeypatch):
    """The control: it leaves, and the ledger has no line of it."""
    monkeypatch.setattr(ledger, "unrefined", lambda rows, refined: [])
    every_row = SimpleNamespace(refined_rows=lambda db, study_id: range(1_000))
    monkeypatch.setattr(refinements, "ledger_lines", every_row)
    moved = losses(tmp_path, monkeypatch, is_large)
    assert max(loss - charged for loss, charged, _ in moved) > 1.8


def test_without_a_second_draw_s_line_no_second_draw_leaves(curator, monkeypatch):
    monkeypatch.setattr(ledger, "unrefined", lambda rows, refined: [])
    study_id = curator.release(study(curator.register(csv_of(ROWS))))
    assert second_draws(query(curator, study_id, [1])) == {}
    with pytest.raises(LogBroken, match="second draw"):
        curator.check()


def test_a_release_with_a_delta_keeps_it_for_records_that_were_not_queried(tmp_path, monkeypatch):
    """Point 3 of Theorem R: without the record's query (1, delta), for all events (3, delta)."""
    delta = 0.05
    release = PLANAR.model_copy(update={"delta": delta})
    grid = {"first": range(-160, 161, 2), "second": range(-64, 65, 32)}
    (first_world, charged), (other_world, _) = (
        transcripts(tmp_path / name, monkeypatch, x, is_large, release, **grid) for name, x in (("a", 0.0), ("b", 1.0))
    )
    step = 2  # of the grid: each point stands for two
    excess = {1.0: 0.0, 3.0: 0.0}
    for seen in first_world.keys() | other_world.keys():
        of = charged.get(seen, 1.0 if len(seen) == 1 else 3.0)
        excess[of] += step * max(
            other_world[seen] - math.exp(of) * first_world[seen],
            first_world[seen] - math.exp(of) * other_world[seen],
            0.0,
        )
    assert 0.2 * delta < excess[1.0] <= delta  # a pure release of epsilon 1 would not exceed it at all
    assert excess[3.0] <= delta


# --- the pair as it is drawn --------------------------------------------------------------------------


def pairs(folder, x, count):
    """Both draws of so many records at ``x``: of a release through the API, and the second ones all at once."""
    curator = Refining(folder)
    dataset = curator.register(csv_of([[x]] * count))
    feature = wire.Feature(column="x0", lower=-2.0, upper=2.0, scale=1.0)
    study_id = curator.release(study(dataset, features=[feature]))
    z = np.load(io.BytesIO(curator.send("modeler", "GET", f"/v1/studies/{study_id}/candidates").content))
    with curator.context.database.read() as db:
        refined = refinements.draw(db, curator.curator.released.of(db, study_id), range(count))
    curator.close()
    return z[:, 0], np.array([refined[row] for row in range(count)])[:, 0]


WAYS = {
    "honest": (lambda z1, z2, x: z2, False),
    "half the noise": (lambda z1, z2, x: (z2 + x) / 2, True),
    "in proportion to the first": (lambda z1, z2, x: x + (z1 - x) / 2, True),
}


@pytest.fixture(scope="module")
def both_draws(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return [(x, *pairs(folder / repr(x), x, 10_000)) for x in (0.0, 1.0)]


@pytest.mark.parametrize("way", WAYS)
def test_an_audit_of_both_draws_proves_no_more_than_both_epsilons(way, both_draws):
    """Controls: a second draw with half its noise, and one in proportion to the first, which gives the record."""
    change, is_caught = WAYS[way]
    scores = []
    for x, z1, z2 in both_draws:
        changed = change(z1, z2, x)
        if way == "in proportion to the first":
            scores.append(2 * changed - z1)
        else:
            scores.append(sum(a * (np.abs(z) - np.abs(z - 1)) for a, z in ((1, z1), (2, changed))))
    bound = lower_bound(scores[1], scores[0])
    assert (bound > 3) == is_caught
    assert bound > 1.8


def test_both_draws_are_independent(both_draws):
    """Correlations of 20,000 pairs of noise and of their sizes, and the control: a share of the first in the second."""
    first, second = (np.concatenate([z[n] - z[0] for z in both_draws]) for n in (1, 2))
    limit = 5.2 / math.sqrt(len(first))
    assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert abs(np.corrcoef(np.abs(first), np.abs(second))[0, 1]) < limit
    assert abs(np.corrcoef(first, second + 0.1 * first)[0, 1]) > limit
