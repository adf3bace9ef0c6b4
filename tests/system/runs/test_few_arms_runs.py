"""Runs of the algorithms over few arms, over both services: to their end, taken up after a kill, refused, warned."""

import csv
import io
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from blindopt import wire
from tests.conftest import IDENTITY

ARMS = 12
HEAVY = {"value_bound": 1.0, "noise_moment": 0.1}
KERNEL = wire.Kernel(lengthscale=0.5, signal_variance=0.25, noise_variance=0.01, mean=0.5)
ALGORITHMS = {
    "laplace": [
        wire.LdpAta(name="ldp_ata"),
        wire.LdpTgp(name="ldp_tgp"),
        wire.TgpTight(name="tgp_tight"),
        wire.LdpMoma(name="ldp_moma"),
        wire.LaplaceAdf(name="laplace_adf"),
    ],
    "one_bit": [
        wire.BoundedIgp(name="bounded_igp"),
        wire.BoundedIgp(name="bounded_igp", mode="guaranteed"),
        wire.Thompson(name="thompson"),
    ],
    "none": [
        wire.Ata(name="ata", **HEAVY),
        wire.Tgp(name="tgp", **HEAVY),
        wire.Moma(name="moma", **HEAVY),
        wire.IgpUcb(name="igp_ucb"),
    ],
}
NOISE = {"laplace": wire.LaplaceAnswers, "one_bit": wire.OneBitAnswers}


@pytest.fixture(scope="module")
def arms(owner, small):
    """Twelve rows on a grid, registered."""
    x = np.linspace(-3, 3, ARMS)
    y = np.exp(-((x - 1) ** 2))
    lines = [",".join(small.names), *(f"{a!r},{0.5 * a!r},{b!r}" for a, b in zip(x.tolist(), y.tolist(), strict=True))]
    return owner.register("arms", ("\n".join(lines) + "\n").encode(), public=True)


@pytest.fixture(scope="module")
def study_of(owner, arms, open_study):
    def make(family, unit="answer", **more):
        said = wire.NoAnswerNoise(mechanism="none")
        if family != "none":
            said = NOISE[family](mechanism=family, epsilon="2", value_bound=0.5, noise_bound=0.2, centre=0.5)
        return open_study(
            owner, arms, IDENTITY, kernel=KERNEL, noise_variance=0.01, answers=said, privacy_unit=unit, **more
        )

    return make


def spec_of(run_of, curator, opened, algorithm, **chosen):
    return run_of(curator.url, opened, **chosen).model_copy(update={"algorithm": algorithm})


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("family", ALGORITHMS)
def test_every_algorithm_runs_to_its_end_and_may_ask_a_row_again(family, study_of, vendor, curator, owner, run_of):
    opened = study_of(family)
    started = [
        vendor.start(spec_of(run_of, curator, opened, algorithm, iterations=17, initial_rows=1, seed=3))
        for algorithm in ALGORITHMS[family]
    ]
    for run, algorithm in zip(started, ALGORITHMS[family], strict=True):
        ended = vendor.wait(run.id, timeout_s=240)
        assert (ended.state, ended.ended_because, ended.trials) == ("completed", "budget", 18), ended.problem
        trials = vendor.export(run.id).trials
        assert ended.algorithm == algorithm
        assert len({trial.row for trial in trials}) < 18  # 18 plays of 12 arms
        assert all(math.isfinite(t.mean) and t.sd > 0 and math.isfinite(t.acquisition) for t in trials[1:])
        lines = list(csv.DictReader(io.StringIO(vendor.export_csv(run.id))))
        written = [(line["plays"], line["privacy_family"], line["privacy_variance"]) for line in lines]
        noise = [trial.passport.privacy for trial in trials]
        assert {privacy.family for privacy in noise} == {family}
        assert written == [("1", family, "" if p.variance is None else repr(p.variance)) for p in noise]
        few = ["below 100" in warning for warning in ended.warnings]
        quick = algorithm.name in ("laplace_adf", "thompson") or getattr(algorithm, "mode", None) == "practical"
        assert any(few) == (family != "none" and not quick)
    assert curator.run_in_process("audit", "verify").returncode == 0
    if family != "none":  # each play is a query of its own, charged
        spent = owner.balance(opened.id).total_epsilon
        assert float(spent) == 2 * 18 * len(started)


def test_a_run_goes_on_until_no_row_has_budget(study_of, vendor, curator, run_of):
    """Records are people: the third answer about one is over the cap, so it is never queried. Nothing is refused."""
    opened = study_of("laplace", unit="row", budget=wire.Budget(epsilon_per_row="4"))
    run = vendor.start(spec_of(run_of, curator, opened, wire.LaplaceAdf(name="laplace_adf"), iterations=100))
    ended = vendor.wait(run.id, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.problem) == ("completed", "exhausted", None)
    assert (ended.trials, ended.declined) == (2 * ARMS, 0)
    assert Counter(trial.row for trial in vendor.export(run.id).trials) == dict.fromkeys(range(ARMS), 2)
    assert any("records are people" in warning for warning in ended.warnings)


def test_what_others_have_spent_is_learned_from_refusals_which_cost_nothing(
    study_of, vendor, curator, modeler, owner, run_of
):
    """A second run under the grant, in batches, and one under another grant: what is left is queried, and the run ends.

    Of rows that were chosen together only those without budget are refused: the others are answered.
    """
    opened = study_of("laplace", unit="row", budget=wire.Budget(epsilon_per_row="4"))
    other = replace(opened, token=owner.grant(opened.id, wire.GrantCreate(name="other")).token)
    algorithm, runs = wire.LaplaceAdf(name="laplace_adf"), []
    for grant, iterations, batch in ((opened, 9, 1), (opened, 99, 4), (other, 99, 1)):
        spec = spec_of(run_of, curator, grant, algorithm, iterations=iterations, initial_rows=1)
        run = vendor.start(spec.model_copy(update={"batch_size": batch})).id
        runs.append(vendor.wait(run, timeout_s=240))
    first, second, last = runs
    assert [run.ended_because for run in runs] == ["budget", "exhausted", "exhausted"]
    assert (first.trials, second.trials, last.trials, last.declined) == (10, 2 * ARMS - 10, 0, ARMS)
    trials = vendor.export(second.id).trials
    mixed = [{t.declined for t in trials if t.query == trial.query} for trial in trials if trial.declined]
    assert {True, False} in mixed  # in one batch
    refused = sum(line.kind == "refused" for line in owner.ledger(opened.id))
    batches = len({t.query for t in trials if t.declined and sum(u.query == t.query for u in trials) > 1})
    assert refused == second.declined + batches + last.declined  # each batch first as a whole
    assert batches > 0
    assert owner.balance(opened.id).total_plays == 2 * ARMS
    assert modeler.run_in_process("audit", "verify").returncode == 0
    for run in runs:
        replayed = modeler.run_in_process("replay", run.id)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_cap_on_all_rows_ends_a_run_as_refused_by_whoever_it_was_spent(study_of, vendor, curator, owner, run_of):
    opened = study_of("laplace", budget=wire.Budget(queries=5))
    other = replace(opened, token=owner.grant(opened.id, wire.GrantCreate(name="other")).token)
    algorithm, ends = wire.LaplaceAdf(name="laplace_adf"), []
    for grant in (opened, opened, other):
        run = vendor.start(spec_of(run_of, curator, grant, algorithm, iterations=50, initial_rows=1)).id
        ended = vendor.wait(run, timeout_s=240)
        ends.append((ended.ended_because, ended.trials, ended.declined))
    assert ends == [("refused", 5, 0), ("refused", 0, 0), ("refused", 0, 2)]
