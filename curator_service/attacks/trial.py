"""All attacks on one study: on a trial release of some of its rows, or on what was released for good."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.errors import ReleaseImpossible
from blindopt.wire import Finding, StudyCreate
from curator_service.attacks import averaging, column_space, known_rows, known_rows_noisy, linkage, membership
from curator_service.attacks.scene import Public, Scene, as_rows, draw
from curator_service.privacy import entropy
from curator_service.release.mechanism import Mechanism
from curator_service.scaling import ScaledRows

ATTACKS = ("known_rows", "known_rows_noisy", "linkage", "column_space", "membership", "averaging")
"""In the order in which they are told."""
_ON_SCENE = ATTACKS[:3]
ROWS = 2_000
"""Rows of a trial: enough for what is told of them, few enough for a person who waits."""
_MORE = 20
"""Times as many where a part of the rows cannot be released, say for a column that is constant there."""
_WIDE = 50
"""With more features each fit takes long: fewer repetitions."""
# Shares of the time, measured on what takes it: draws.
_SCENE, _NEIGHBOURS, _SPACES, _ANSWERS = 0.15, 0.3, 0.2, 0.15


@dataclass(frozen=True, slots=True, repr=False)
class _Study:
    """What all attacks share. ``x`` (m, d): some rows in scaled units; ``row_seconds``: how long one takes to draw."""

    spec: StudyCreate
    mechanism: Mechanism
    public: Public
    outcomes: Vector | None
    x: Matrix
    n: int
    row_seconds: float
    rng: np.random.Generator
    seconds: float


def on_trial(
    spec: StudyCreate,
    rows: ScaledRows,
    outcomes: Vector | None,
    mechanism: Mechanism,
    *,
    rng: np.random.Generator | None = None,
    seconds: float = 3.0,
) -> list[Finding]:
    """Every attack that applies, on a release of up to 2,000 random rows that is thrown away.

    ``outcomes`` (n,) is the measurement column, None where y is not measured yet. Takes about ``seconds`` where there
    are few features, once the noise library is loaded: slow draws make fewer rows. Changes nothing. An attack that
    needs more rows than there are is left out, and so is one whose trial the mechanism cannot release.
    """
    told = dict(one_by_one(spec, rows, outcomes, mechanism, rng=rng, seconds=seconds))
    return _found(*(told[attack] for attack in ATTACKS))


def one_by_one(
    spec: StudyCreate,
    rows: ScaledRows,
    outcomes: Vector | None,
    mechanism: Mechanism,
    *,
    rng: np.random.Generator | None = None,
    seconds: float = 3.0,
) -> Iterator[tuple[str, Finding | None]]:
    """The same as each attack ends, by name, None for one that does not apply: for who may stop in the middle.

    That on answers comes first: it alone takes no longer for more features.
    """
    yield (
        "averaging",
        averaging.attack(spec, outcomes, rng := rng or np.random.default_rng(), seconds=_ANSWERS * seconds),
    )
    study = _study(spec, rows, outcomes, mechanism, rng, seconds)
    try:
        scene = Scene(study.x, draw(mechanism, study.x), study.public, study.n)
    except ReleaseImpossible:
        yield from ((attack, None) for attack in _ON_SCENE)
    else:
        yield from _on_scene(study, scene, scene.z, np.arange(len(study.x)))
    yield from _on_more(study)


def on_release(
    spec: StudyCreate,
    rows: ScaledRows,
    outcomes: Vector | None,
    mechanism: Mechanism,
    z: Matrix,
    *,
    rng: np.random.Generator | None = None,
    seconds: float = 3.0,
) -> list[Finding]:
    """The same on the Z (n, r) that was released: ``rows`` in its order. What needs further releases is on trial."""
    study = _study(spec, rows, outcomes, mechanism, rng, seconds)
    places = entropy.some_rows(rows.n, ROWS)
    scene = Scene(_some(rows, places), np.asarray(z[places]), study.public, study.n)
    told = dict([*_on_scene(study, scene, z, places), *_on_more(study)])
    told["averaging"] = averaging.attack(spec, outcomes, study.rng, seconds=_ANSWERS * seconds)
    return _found(*(told[attack] for attack in ATTACKS))


def _study(
    spec: StudyCreate,
    rows: ScaledRows,
    outcomes: Vector | None,
    mechanism: Mechanism,
    rng: np.random.Generator | None,
    seconds: float,
) -> _Study:
    public, count, row_seconds = Public.of(spec, mechanism), ROWS, 0.0
    if public.noise_sd:
        row_seconds = _row_seconds(mechanism, rows.d)
        count = int(np.clip(_SCENE * seconds / row_seconds, 2, ROWS))
    x = _some(rows, entropy.some_rows(rows.n, count))
    if len(x) < rows.n:
        try:
            mechanism.assess(as_rows(x))
        except ReleaseImpossible:
            x = _some(rows, entropy.some_rows(rows.n, _MORE * count))
    return _Study(spec, mechanism, public, outcomes, x, rows.n, row_seconds, rng or np.random.default_rng(), seconds)


def _some(rows: ScaledRows, places: NDArray[np.int64]) -> Matrix:
    chosen = replace(rows, order=rows.order[places])
    return np.concatenate([block for _, block in chosen.blocks()])


def _row_seconds(mechanism: Mechanism, d: int) -> float:
    draw(mechanism, np.zeros((2, d)))  # the first draw loads the noise library
    begun = time.perf_counter()
    draw(mechanism, np.zeros((32, d)))
    return max((time.perf_counter() - begun) / 32, 1e-6)


def _on_scene(
    study: _Study, scene: Scene, whole: Matrix, places: NDArray[np.int64]
) -> Iterator[tuple[str, Finding | None]]:
    """Attacks on one release ``whole`` (n, r), of which the scene shows the rows at ``places``."""
    repetitions = known_rows.REPETITIONS if scene.x.shape[1] <= _WIDE else known_rows.REPETITIONS // 3
    yield "known_rows", known_rows.attack(scene, study.rng, repetitions)
    yield "known_rows_noisy", known_rows_noisy.attack(scene, study.rng, repetitions)
    yield "linkage", linkage.attack(scene, whole, places, study.rng)


def _on_more(study: _Study) -> Iterator[tuple[str, Finding | None]]:
    """Attacks that draw releases of their own."""
    x, public, seconds = study.x, study.public, study.seconds
    few = x[: max(60, 4 * (x.shape[1] + 1))]
    runs = column_space.RUNS_OF_A_ROW
    if study.row_seconds:
        runs = int(np.clip(_NEIGHBOURS * seconds / 2 / study.row_seconds, 200, runs))

    def neighbours(part: Matrix) -> Finding | None:
        attack = column_space.attack
        return attack(part, study.mechanism, public, study.rng, runs_of_a_row=runs, seconds=_SPACES * seconds)

    yield "column_space", _if_possible(lambda: neighbours(few)) or _if_possible(lambda: neighbours(x))
    yield "membership", _if_possible(lambda: membership.attack(x, study.mechanism, public, study.rng, study.n))


def _if_possible(act: Callable[[], Finding | None]) -> Finding | None:
    try:
        return act()
    except ReleaseImpossible:
        return None


def _found(*findings: Finding | None) -> list[Finding]:
    return [finding for finding in findings if finding is not None]
