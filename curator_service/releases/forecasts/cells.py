"""The cells of a forecast: each mechanism at each privacy level; its kernels, and rows of the declared box."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.answer_worth import law_of
from blindopt.arrays import Matrix
from blindopt.errors import Invalid
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import answers
from curator_service.privacy.measurement.groups import LEVELS, GroupAnswers
from curator_service.privacy.noise import least_epsilon
from curator_service.privacy.prices import UNITS, Prices, exact, text
from curator_service.releases.mechanisms import groups
from curator_service.releases.mechanisms.axes import Axes
from curator_service.releases.mechanisms.mechanism import Mechanism
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb, largest_r, spectrum
from curator_service.releases.mechanisms.private_centres import PrivateCentres
from curator_service.releases.mechanisms.registry import planned_mechanism, refinement_of
from curator_service.releases.mechanisms.row_noise import PROJECTED_FEATURES_MIN, PlanarLaplaceMechanism
from curator_service.studies import public_kernels

FAILURE_PROBABILITY = 1e-6
"""delta where the study has none and the mechanism needs one."""
PROJECTION_COLUMNS = 10
COLUMNS_MAX = 1_000
ROWS_MIN = 2
GROUP_ROWS = 20_000
"""Uniform rows that say how many records each group of a public forecast has."""
EPSILON_MIN, EPSILON_MAX = Decimal("0.000001"), Decimal(1_000)
"""Of a release, or of an answer."""
GROUP_RECORDS, ROWS_OF_GROUP = 50, 10
"""Records, and simulated rows, of a group on average, at least, where groups stand beside a search over records.

Of fewer rows the mean differs more than that of all records: the best of such means is too good.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A mechanism at a level. ``epsilon`` is None for identity, the baseline without noise."""

    name: str
    epsilon: str | None
    mechanism: Mechanism
    by_rule: bool = False
    """Whether r follows from the records, by the paper's rule."""
    answers: GroupAnswers | None = None
    """What answers about groups, at this level."""
    private: wire.Answers = wire.NONE
    """The answers about records: exact ones in the baseline."""
    second: PlanarLaplaceMechanism | None = None
    """That of second draws, where measured records leave again."""

    @property
    def answers_epsilon(self) -> str | None:
        """Epsilon of an answer; None for exact ones."""
        return None if isinstance(self.private, wire.NoAnswerNoise) else self.private.epsilon

    @property
    def answer_variance(self) -> float:
        """The variance of the noise in an answer about a record."""
        return 0.0 if (law := law_of(self.private)) is None else law.variance

    def on(self, rows: ScaledRows) -> Mechanism:
        """The mechanism for ``rows`` (n, d). Raises ReleaseImpossible where it cannot release them."""
        mechanism = self.mechanism
        if self.by_rule and isinstance(mechanism, PoGpUcb):
            mechanism.assess(rows)  # raises with an explanation where features are linearly dependent
            sigma_min = spectrum(rows).sigma_min / mechanism.sensitivity
            r = largest_r(sigma_min, float(mechanism.epsilon), mechanism.delta)
            mechanism = PoGpUcb(mechanism.epsilon, mechanism.delta, mechanism.sensitivity, min(max(r, 1), COLUMNS_MAX))
        if isinstance(mechanism, Axes):  # the rows are those of a sample, or else stand for it
            return mechanism.of_sample(rows) if mechanism.spec.axes == "public" else mechanism.prepare(rows)
        mechanism.assess(rows)
        return mechanism


def cells_of(study: wire.StudyCreate, forecast: wire.ForecastCreate) -> list[Cell]:
    """Identity first, then each mechanism at each level, in the order of ``forecast`` and without duplicates.

    Where ``forecast`` states levels of answers: the study's own release with exact answers, then with each of these.
    Where measured records leave again, each level of planar_laplace comes twice: without second draws, then with them.
    Depends on public values alone. Raises Invalid for a mechanism that does not fit this study.
    """
    if study.refine is not None:
        cells = []
        for cell in cells_of(study.model_copy(update={"refine": None}), forecast):
            is_refined = isinstance(cell.mechanism, PlanarLaplaceMechanism)
            cells += [cell, replace(cell, second=refinement_of(study))] if is_refined else [cell]
        return cells
    cells = [Cell("identity", None, _mechanism(study, wire.IdentityRelease(mechanism="identity")))]
    if forecast.answers is not None and not isinstance(study.release, wire.GroupsRelease):
        return [*cells, *_of_answers(study, forecast.answers)]
    levels = {wire.amount(epsilon): epsilon for epsilon in reversed(forecast.epsilons)}
    if isinstance(study.release, wire.GroupsRelease):
        if forecast.mechanisms != ["auto"]:
            raise Invalid.at("mechanisms", "a study of groups is forecast by itself: leave the mechanisms out")
        return [*cells, *(_of_groups(study, levels[wire.amount(level)]) for level in dict.fromkeys(forecast.epsilons))]
    for name in dict.fromkeys(forecast.mechanisms):
        index = forecast.mechanisms.index(name)
        for epsilon in dict.fromkeys(levels[wire.amount(level)] for level in forecast.epsilons):
            if name != "identity":
                cells.append(_cell(study, name, epsilon, index))
    return cells


def _of_answers(study: wire.StudyCreate, epsilons: list[str]) -> Iterator[Cell]:
    """The study's own release, with exact answers and with private ones at each level."""
    release, mechanism = study.release, _mechanism(study, study.release)
    name, epsilon = release.mechanism, getattr(release, "epsilon", None)
    if not isinstance(release, wire.IdentityRelease):
        yield Cell(name, epsilon, mechanism)
    if epsilons and isinstance(study.answers, wire.NoAnswerNoise):
        raise Invalid.at("answers", "the study's answers are exact: state a range of outcomes and an epsilon first")
    for level in dict.fromkeys(epsilons):
        private = study.answers.model_copy(update={"epsilon": level})
        if faults := answers.faults(private):
            raise Invalid.at("answers", str(faults[0]["message"]))
        yield Cell(name, epsilon, mechanism, private=private)


def whole(study: wire.StudyCreate) -> Decimal:
    """Epsilon of a record in total: its cap, or else the release and one answer."""
    cap, prices = study.budget.epsilon_per_row, Prices.of(study)
    return wire.amount(text(prices.release + prices.refine + prices.answer) if cap is None else cap)


def total_of_groups(study: wire.StudyCreate) -> str | None:
    """Epsilon of a record in total, at which groups stand beside a search over its records; None where none can."""
    is_private = isinstance(study.release, wire.LocalRelease) and not isinstance(study.answers, wire.NoAnswerNoise)
    if not is_private or not isinstance(study.measurement, wire.ColumnMeasurement):
        return None
    total = min(whole(study), 2 * EPSILON_MAX)
    fits = total / 2 >= max(EPSILON_MIN, least_epsilon(2 * LEVELS * study.protected_rows))
    return exact(total) if fits and len(study.features) <= groups.FEATURES_MAX else None


def groups_at_once(study: wire.StudyCreate, epsilon: str, records: int, rows: int) -> Cell:
    """Groups about centres that are spread evenly, where a record of a study of records has ``epsilon`` in total.

    Half is for the numbers of records, and half for answers. ``rows``: those that are simulated, for so many records.
    """
    assert not isinstance(study.answers, wire.NoAnswerNoise)
    half = (wire.amount(epsilon) / 2).quantize(Decimal(1) / UNITS, ROUND_FLOOR)
    number = max(2, min(records // GROUP_RECORDS, rows // ROWS_OF_GROUP, wire.CENTRES_MAX))
    lower, upper, unit = np.array([(f.lower, f.upper, f.unit) for f in study.features]).T
    centres = PrivateCentres(study.features, number, half).start() * unit + (lower + upper) / 2
    cells = wire.CentreCells(kind="centres", centres=centres.tolist())
    release = wire.GroupsRelease(mechanism="groups", epsilon=exact(half), cells=cells)
    fields = study.answers.model_dump(exclude={"mechanism", "epsilon", "plays"})
    private = wire.LaplaceAnswers(mechanism="laplace", epsilon=exact(half), **fields)
    mechanism = groups.Groups(study.features, cells, half, release.min_count, study.protected_rows)
    of_groups = GroupAnswers(private, release, study.protected_rows)
    return Cell("groups_at_once", epsilon, mechanism, answers=of_groups)


def _of_groups(study: wire.StudyCreate, epsilon: str) -> Cell:
    """A study of groups where a record has ``epsilon`` in all, divided as the study divides its own."""
    release, answers, share = study.release, study.answers, wire.amount(epsilon) / whole(study)
    assert isinstance(release, wire.GroupsRelease)
    assert isinstance(answers, wire.LaplaceAnswers)

    def part(of: str) -> str:
        return exact((wire.amount(of) * share).quantize(Decimal(1) / UNITS, ROUND_FLOOR))

    cells = release.cells
    if isinstance(cells, wire.PrivateCells):
        cells = cells.model_copy(update={"epsilon": part(cells.epsilon)})
    release = release.model_copy(update={"epsilon": part(release.epsilon), "cells": cells})
    at = study.model_copy(
        update={"release": release, "answers": answers.model_copy(update={"epsilon": part(answers.epsilon)})}
    )
    if groups.faults(at):
        raise Invalid.at("epsilons", f"{epsilon} is too small for groups: its noise does not fit 64 bits")
    return Cell("groups", epsilon, groups.Groups.of(at, release), answers=GroupAnswers.of(at))


def _cell(study: wire.StudyCreate, name: str, epsilon: str, index: int) -> Cell:
    by_rule = name == "po_gp_ucb" and not isinstance(study.release, wire.PoGpUcbRelease)
    try:
        mechanism = _mechanism(study, _release(study, name, epsilon))
        return Cell(name, epsilon, mechanism, by_rule, private=study.answers)
    except Invalid as error:
        why = error.errors[0]["message"] if error.errors else error
        raise Invalid.at(f"mechanisms.{index}", f"{name} cannot be tried for this study: {why}"[:300]) from None


def _mechanism(study: wire.StudyCreate, release: wire.ReleaseSpec) -> Mechanism:
    return planned_mechanism(study.model_copy(update={"release": release}))


def _release(study: wire.StudyCreate, name: str, epsilon: str) -> wire.ReleaseSpec:
    """The release by mechanism ``name`` at this level, with the study's own Delta, delta and r where it has them."""
    of_study, d = study.release, len(study.features)
    shared: dict[str, Any] = {
        "mechanism": name,
        "epsilon": epsilon,
        "sensitivity": getattr(of_study, "sensitivity", 1.0),
    }
    promise: Any = getattr(of_study, "promise", "euclidean")  # of those that can keep it
    own_delta = getattr(of_study, "delta", None)
    delta = FAILURE_PROBABILITY if own_delta is None else own_delta
    match name:
        case "auto" if isinstance(of_study, wire.AxesRelease):
            return of_study.model_copy(update={"epsilon": epsilon})
        case "auto":  # without a delta it takes pure epsilon-DP alone, as the study would
            if isinstance(of_study, wire.AutoRelease):
                shared |= of_study.model_dump(include={"sample_dataset_id", "radius", "r"})
            return wire.AutoRelease(delta=own_delta, promise=promise, **shared)
        case "planar_laplace":
            delta = own_delta if isinstance(of_study, wire.PlanarLaplaceRelease) else None
            return wire.PlanarLaplaceRelease(delta=delta, promise=promise, **shared)
        case "gaussian":
            return wire.GaussianRelease(delta=delta, **shared)
        case "gaussian_projection":
            if d < PROJECTED_FEATURES_MIN:
                raise Invalid(f"gaussian_projection is for {PROJECTED_FEATURES_MIN} features or more")
            r = of_study.r if isinstance(of_study, wire.GaussianProjectionRelease) else PROJECTION_COLUMNS
            return wire.GaussianProjectionRelease(delta=delta, r=r, **shared)
        case _:
            r = (
                of_study.r if isinstance(of_study, wire.PoGpUcbRelease) else 1
            )  # by the paper's rule, once the rows are known
            return wire.PoGpUcbRelease(delta=delta, r=r, acknowledge_refuted=True, **shared)


_ROWS = 4  # a stream of the seed that the simulation does not use


def kernels_of(study: wire.StudyCreate, forecast: wire.ForecastCreate) -> list[wire.Kernel]:
    """The kernels of a forecast, by increasing length-scale, from public values alone.

    On public rows three: the middle one is the study's, or else follows from the declared box. On the records the
    study's alone: Invalid where it has none.
    """
    if forecast.rows == "public":
        return public_kernels.band(study)
    if study.kernel is None:
        raise Invalid.at("kernel", "is missing: a forecast on the records draws from it, so declare one in the draft")
    return [study.kernel]


def uniform_rows(features: list[wire.Feature], n: int, seed: int) -> Matrix:
    """Draw ``n`` raw rows, uniform in the declared box: (n, d). They depend on no record."""
    rng = np.random.default_rng([seed, _ROWS])
    lower, upper = np.array([(feature.lower, feature.upper) for feature in features]).T
    rows: Matrix = lower + (upper - lower) * rng.random((n, len(features)))
    return rows
