"""All attacks on one study: on a trial release of some of its rows, or on its actual release."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.errors import ReleaseImpossible
from blindopt.wire import Finding, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy
from curator_service.releases.attacks import averaging, column_space, groups, known_rows, linkage, membership
from curator_service.releases.attacks.scene import Public, Scene, as_rows, draw
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Mechanism

ATTACKS = ("known_rows", "known_rows_noisy", "linkage", "column_space", "membership", "averaging")
"""In the order in which findings are listed."""
_ON_SCENE = ATTACKS[:3]
ROWS = 2_000
"""Rows of a trial release: enough for the findings, and few enough for an owner who waits."""
_MORE = 20
"""So many times more rows are tried where a part cannot be released, say for a column that is constant in it."""
_WIDE = 50
"""With more features than this each fit is slow, so there are fewer repetitions."""
# Shares of the time for each kind of attack, by measurements of their draws, which take most of it.
_SCENE, _NEIGHBOURS, _SPACES = 0.15, 0.3, 0.2


@dataclass(frozen=True, slots=True, repr=False)
class _Study:
    """The inputs of all attacks. ``x`` (m, d): a part of the rows in scaled units; ``row_seconds``: time of a draw."""

    mechanism: Mechanism
    public: Public
    x: Matrix
    n: int
    row_seconds: float
    rng: np.random.Generator
    seconds: float


def in_order(tried: Iterable[tuple[str, Finding | None]]) -> list[Finding]:
    """Findings, each with its attack, in the order of ``ATTACKS``, without attacks that do not apply."""
    by_attack = dict(tried)
    return [finding for attack in ATTACKS if (finding := by_attack.get(attack)) is not None]


def one_by_one(
    spec: StudyCreate,
    rows: ScaledRows,
    outcomes: Vector | None,
    mechanism: Mechanism,
    z: Matrix | None = None,
    *,
    rng: np.random.Generator | None = None,
    seconds: float = 3.0,
    row_seconds: float | None = None,
) -> Iterator[tuple[str, Finding | None]]:
    """Yield the name and finding of each attack as soon as it ends; the finding is None for one that does not apply.

    ``z`` (n, r) is the actual release, with ``rows`` in its order; without it a release of up to 2,000 random rows is
    drawn and thrown away, as all further releases are. ``outcomes`` (n,) is the measurement column, None where y is not
    measured yet. Takes about ``seconds`` with few features, once the noise library is loaded: with slow draws, fewer
    rows are tried. ``row_seconds`` is the time of a row's draw, which is measured unless given. An attack does not
    apply where there are too few rows, or where the mechanism cannot release its rows.

    The attack on answers comes first, because it alone does not take longer for more features.
    """
    rng = rng or np.random.default_rng()
    yield "averaging", averaging.attack(spec, outcomes, rng)
    if isinstance(mechanism, Groups):  # Z is public: no record is in it
        assert outcomes is not None
        yield from groups.one_by_one(spec, mechanism, outcomes, rng)
        return
    mechanism = mechanism.prepare(rows)
    public, count, draw_seconds = Public.of(spec, mechanism), ROWS, 0.0
    if public.noise_sd:
        draw_seconds = row_seconds or _row_seconds(mechanism, rows.d)
        count = int(np.clip(_SCENE * seconds / draw_seconds, 2, ROWS))
    x = _rows_at(rows, entropy.choose_rows(rows.n, count))
    if len(x) < rows.n:
        try:
            mechanism.assess(as_rows(x))
        except ReleaseImpossible:
            x = _rows_at(rows, entropy.choose_rows(rows.n, _MORE * count))
    study = _Study(mechanism, public, x, rows.n, draw_seconds, rng, seconds)
    if z is not None:
        row_numbers = entropy.choose_rows(rows.n, ROWS)
        scene = Scene(_rows_at(rows, row_numbers), np.asarray(z[row_numbers]), study.public, study.n)
        yield from _on_scene(study, scene, z, row_numbers)
    else:
        try:
            scene = Scene(study.x, draw(mechanism, study.x), study.public, study.n)
        except ReleaseImpossible:
            yield from ((attack, None) for attack in _ON_SCENE)
        else:
            yield from _on_scene(study, scene, scene.z, np.arange(len(study.x)))
    yield from _on_more(study)


def _rows_at(rows: ScaledRows, row_numbers: NDArray[np.int64]) -> Matrix:
    sample = replace(rows, order=rows.order[row_numbers])
    return np.concatenate([block for _, block in sample.blocks()])


def _row_seconds(mechanism: Mechanism, d: int) -> float:
    draw(mechanism, np.zeros((2, d)))  # the first draw loads the noise library
    started_s = time.perf_counter()
    draw(mechanism, np.zeros((32, d)))
    return max((time.perf_counter() - started_s) / 32, 1e-6)


def _on_scene(
    study: _Study, scene: Scene, whole: Matrix, row_numbers: NDArray[np.int64]
) -> Iterator[tuple[str, Finding | None]]:
    """Attacks on one release ``whole`` (n, r); the scene has its rows ``row_numbers``."""
    repetitions = known_rows.REPETITIONS if scene.x.shape[1] <= _WIDE else known_rows.REPETITIONS // 3
    yield "known_rows", known_rows.attack(scene, study.rng, repetitions)
    yield "known_rows_noisy", known_rows.attack_roughly(scene, study.rng, repetitions)
    yield "linkage", linkage.attack(scene, whole, row_numbers, study.rng)


def _on_more(study: _Study) -> Iterator[tuple[str, Finding | None]]:
    """Attacks that draw releases of their own."""
    x, public, seconds = study.x, study.public, study.seconds
    few = x[: max(60, 4 * (x.shape[1] + 1))]
    runs = column_space.RUNS_OF_A_ROW
    if study.row_seconds:
        runs = int(np.clip(_NEIGHBOURS * seconds / 2 / study.row_seconds, 200, runs))

    def neighbours(x_part: Matrix) -> Finding | None:
        attack = column_space.attack
        return attack(x_part, study.mechanism, public, study.rng, runs_of_a_row=runs, seconds=_SPACES * seconds)

    yield "column_space", _if_possible(lambda: neighbours(few)) or _if_possible(lambda: neighbours(x))
    yield "membership", _if_possible(lambda: membership.attack(x, study.mechanism, public, study.rng, study.n))


def _if_possible(act: Callable[[], Finding | None]) -> Finding | None:
    try:
        return act()
    except ReleaseImpossible:
        return None
