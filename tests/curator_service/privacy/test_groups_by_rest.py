"""Numbers and answers of groups together, as they leave a curator: by REST, from the file to the answer.

First with noise that makes the noisy values those of a chosen transcript, whose probability is computed exactly
(test_groups.py); then with the curator's own noise, as an attacker sees it who knows all but one record.
"""

import io
import itertools
from fractions import Fraction

import numpy as np
import pytest

from blindopt import wire
from curator_service.privacy.noise import add_integer_laplace
from curator_service.releases.mechanisms import private_centres
from tests.builders import a_study, group_release, laplace
from tests.curator_service.privacy.epsilon_audit import at_least
from tests.curator_service.privacy.test_groups import FAR, HIGH, LOW, Forced, halve_answers, halve_numbers, loss
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.replaced_noise import replace_integer_laplace, replace_moves_of_centres
from tests.scale import scaled

ROWS = 1_000
"""Candidates of a query, at most."""


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    curator = InProcessCurator(tmp_path_factory.mktemp("groups"), query_rows_max=ROWS)
    yield curator
    curator.check()
    curator.close()


def register(curator, records):
    """A file of records (group, y)."""
    csv = "x,y\n" + "".join(f"{group + 0.5!r},{y!r}\n" for group, y in records)
    return curator.register(csv)


def released(curator, dataset, parts, epsilon, centres=None):
    """A released study of ``parts`` groups along x, its counts and answers each of an ``epsilon``; its id.

    ``centres``: epsilon of private ones besides.
    """
    cells = wire.GridCells(kind="grid", parts=[parts])
    of_release = epsilon
    if centres is not None:
        cells = wire.PrivateCells(kind="private", number=parts, epsilon=centres)
        of_release = str(wire.amount(epsilon) + wire.amount(centres))
    release = group_release(of_release, cells=cells, min_count=1)
    on = {"dataset_id": dataset, "columns": "x", "upper": float(parts), "scale": 1.0}
    return curator.release(a_study(release, laplace(epsilon), **on))


def answered(curator, study, rows):
    """The answers of one query."""
    body = {"rows": [{"row": row} for row in rows]}
    return curator.call("modeler", "POST", f"/v1/studies/{study}/queries", json=body)["answers"]


def answered_by(curator, study, plan):
    """The answers of one query after the other, or of that of all groups at once."""
    if plan is ALL:
        return curator.call("owner", "POST", f"/v1/studies/{study}:answer_all")["answers"]
    return [answered(curator, study, [row]) for row in plan]


ALL = [0, 1]
"""The plan of which the owner has every group answered at once."""


def candidates(curator, study):
    """Z, and the noisy numbers."""
    z = np.load(io.BytesIO(curator.send("modeler", "GET", f"/v1/studies/{study}/candidates").content))
    return z, curator.call("owner", "GET", f"/v1/studies/{study}")["report"]["counts"]


def cost(curator, study):
    """What the account says that a record has lost."""
    return Fraction(curator.call("owner", "GET", f"/v1/studies/{study}/account")["row_epsilon"])


PERSONS = [*itertools.product((0, 1), (LOW, HIGH))]
"""The record in which neighbours differ: of either group, with y at one end of the clip or far beyond the other."""


@pytest.fixture(scope="module")
def neighbours(curator):
    """Files that differ in one record."""
    return [register(curator, [(0, LOW), (1, HIGH), person]) for person in PERSONS]


def largest_loss(curator, neighbours, plan, monkeypatch, centres=None):
    """The largest loss over all neighbours at a transcript that tells most, and what the account says.

    At full size at all transcripts of extreme values. In the rounds of private centres all speaks for the second one.
    """
    numbers, signs = [(1, FAR), (FAR, 1)], itertools.product((FAR, -FAR), repeat=len(plan) - 1)
    transcripts = [(*first, -FAR if plan[0] == 0 else FAR, *rest) for rest in signs for first in numbers]
    worst, said = Fraction(0), set()
    for transcript in transcripts[: scaled(1)]:
        seen, calls = [], []
        for dataset in neighbours:
            rounds = [] if centres is None else [1, 2, -FAR, FAR] * private_centres.ROUNDS
            forced = Forced([*rounds, *transcript])
            replace_integer_laplace(monkeypatch, forced)
            study = released(curator, dataset, 2, "0.5", centres)
            z, counts = candidates(curator, study)
            seen.append((z.tolist(), counts, answered_by(curator, study, plan)))
            calls.append(forced.calls)
            said.add(cost(curator, study))
        assert all(sent == seen[0] for sent in seen), "what leaves depends on the records beside the noise"
        worst = max(worst, loss(calls))
    (charged,) = said
    return worst, charged


@pytest.mark.parametrize("plan", [(0,), (0, 1), (1, 1), (1, 1, 0), (1, 1, 1), ALL], ids=repr)
def test_what_leaves_loses_exactly_what_the_account_says(plan, curator, neighbours, monkeypatch):
    """Counts 0.5, answers 0.5: a move costs 0.5 and a half for each answer, a y that moves in its group 0.5 each."""
    worst, charged = largest_loss(curator, neighbours, plan, monkeypatch)
    assert worst == charged == max(Fraction(max(map(plan.count, plan)), 2), Fraction(1, 2) + Fraction(len(plan), 4))


@pytest.mark.parametrize("plan", [(0, 1), ALL], ids=repr)
@pytest.mark.parametrize("fault", [halve_numbers, halve_answers])
def test_half_the_noise_loses_more_than_the_account_says(fault, plan, curator, neighbours, monkeypatch):
    fault(monkeypatch)
    worst, charged = largest_loss(curator, neighbours, plan, monkeypatch)
    assert worst == Fraction(3, 2) > charged


def halve_centres(monkeypatch):
    replace_moves_of_centres(monkeypatch, lambda moves: tuple(move // 2 for move in moves))


def test_private_centres_are_charged_with_numbers_and_answers_and_lose_no_more(curator, neighbours, monkeypatch):
    """Halton's first two points are 1/2 and 1/4 of the range of 2, and the reach is 1.

    The record at 1.5 is 1/2 from the first centre, the one at 0.5 none from the second: of a round's share for the sums
    they lose a quarter, of that for the numbers all. Centres hardly move, because so few records have steps of noise.
    """
    worst, charged = largest_loss(curator, neighbours, (0, 1), monkeypatch, "0.25")
    assert float(worst) == pytest.approx(1 / 4 * 5 / 8 + 1, abs=1e-4)
    assert charged == Fraction(1, 4) + 1
    halve_centres(monkeypatch)
    assert largest_loss(curator, neighbours, (0, 1), monkeypatch, "0.25")[0] > charged


# --- with the curator's own noise -------------------------------------------------------------------

PAIRS, FILLERS = 2_250, 4
"""Pairs of groups, each an experiment of its own, and records with a y of 0 that every group has."""


def log_ratio(noisy, low):
    """log P(noisy | low + 1) - log P(noisy | low), of Laplace noise of scale 2: at most 1/2 either way."""
    return (np.abs(noisy - low) - np.abs(noisy - low - 1)) / 2


def scores(curator, side):
    """How much speaks for the first group of each pair where the record is in ``side``: log likelihood ratios (PAIRS,).

    The attacker knows the other records, and that y of this one is at the end of the clip. A group that is no candidate
    has a number below 1, and no answer.
    """
    records = [(group, 0.0) for group in range(2 * PAIRS) for _ in range(FILLERS)]
    records += [(2 * pair + side, 1.0) for pair in range(PAIRS)]
    study = released(curator, register(curator, records), 2 * PAIRS, "1")
    z, counts = candidates(curator, study)
    group = np.floor(z[:, 0] + PAIRS).astype(int)
    rows = range(len(group))
    answers = [answer for at in rows[::ROWS] for answer in answered(curator, study, rows[at : at + ROWS])]
    sums = np.array([answer["y"] for answer in answers]) * counts
    assert cost(curator, study) == 2
    seen = np.full(2 * PAIRS, log_ratio(0, FILLERS))
    seen[group] = log_ratio(np.array(counts), FILLERS) + log_ratio(sums, 0.0)
    return seen[::2] - seen[1::2]


def proved(curator, studies):
    """The epsilon that so many studies of each side prove, at 1e-6 a side: by scores of more than 1.4, either way."""
    first, second = (np.concatenate([scores(curator, side) for _ in range(studies)]) for side in (0, 1))
    return at_least(np.concatenate([first, -second]), np.concatenate([second, -first]), 1.4)


@pytest.mark.slow(sibling="test_what_leaves_loses_exactly_what_the_account_says")
def test_the_best_attack_on_numbers_and_answers_together_proves_no_more_than_the_account_says(curator):
    """From 2 x 2,250 records that are in either of two groups, at full size 2 x 45,000: less once in 10^12 times."""
    assert 0.5 < proved(curator, scaled(1)) <= 2.0


@pytest.mark.slow(sibling="test_half_the_noise_loses_more_than_the_account_says")
def test_the_attack_catches_half_the_noise(curator, monkeypatch):
    """The control: missed four times in 10^7, by simulated shares and two binomial laws."""

    def half(values, sensitivity, epsilon):
        return add_integer_laplace(values, sensitivity, 2 * epsilon)

    replace_integer_laplace(monkeypatch, half)
    assert proved(curator, 1) > 2.0
