"""What a forecast tries: each mechanism at each privacy level, as the study that it would be."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from blindopt.errors import Invalid
from blindopt.wire import (
    AutoRelease,
    ForecastCreate,
    GaussianProjectionRelease,
    GaussianRelease,
    IdentityRelease,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    ReleaseSpec,
    StudyCreate,
    amount,
)
from curator_service.release.gaussian_projection import PROJECTED_FEATURES_MIN
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb, largest_r, spectrum
from curator_service.release.registry import choice_of
from curator_service.scaling import ScaledRows

FAILURE_PROBABILITY = 1e-6
"""delta where the study has none and the mechanism needs one."""
PROJECTION_COLUMNS = 10
COLUMNS_MAX = 1_000
ROWS_MIN = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """A mechanism at a level. ``epsilon`` is None for identity, the yardstick without noise."""

    name: str
    epsilon: str | None
    mechanism: Mechanism
    by_rule: bool = False
    """Whether r follows from the records, by the paper's rule."""

    def on(self, rows: ScaledRows) -> Mechanism:
        """The mechanism as it runs on ``rows`` (n, d). Raises ReleaseImpossible where it cannot."""
        mechanism = self.mechanism
        if self.by_rule and isinstance(mechanism, PoGpUcb):
            mechanism.assess(rows)  # says what is wrong with features that depend on each other
            sigma_min = spectrum(rows).sigma_min / mechanism.sensitivity
            r = largest_r(sigma_min, float(mechanism.epsilon), mechanism.delta)
            mechanism = PoGpUcb(mechanism.epsilon, mechanism.delta, mechanism.sensitivity, min(max(r, 1), COLUMNS_MAX))
        mechanism.assess(rows)
        return mechanism


def cells_of(study: StudyCreate, asked: ForecastCreate, withdrawn: Collection[str] = ()) -> list[Cell]:
    """Identity first, then each mechanism at each level, in the order of ``asked``; what is told twice, once.

    ``auto`` takes none that is ``withdrawn``, as a release would. Depends on public values alone. Raises Invalid for
    a study without kernel, and for a mechanism that cannot be made for this study.
    """
    if study.kernel is None:
        fault: dict[str, object] = {"field": "kernel", "message": "the study has none"}
        raise Invalid("a forecast draws functions from the study's kernel: draft a study that has one", [fault])
    cells = [Cell("identity", None, _made(study, IdentityRelease(mechanism="identity"), ()))]
    levels = {amount(epsilon): epsilon for epsilon in reversed(asked.epsilons)}
    for name in dict.fromkeys(asked.mechanisms):
        place = asked.mechanisms.index(name)
        for epsilon in dict.fromkeys(levels[amount(text)] for text in asked.epsilons):
            if name != "identity":
                cells.append(_cell(study, name, epsilon, place, withdrawn))
    return cells


def _cell(study: StudyCreate, name: str, epsilon: str, place: int, withdrawn: Collection[str]) -> Cell:
    by_rule = name == "po_gp_ucb" and not isinstance(study.release, PoGpUcbRelease)
    try:
        return Cell(name, epsilon, _made(study, _release(study, name, epsilon), withdrawn), by_rule)
    except Invalid as error:
        fault: dict[str, object] = {"field": f"mechanisms.{place}", "message": str(error)[:300]}
        raise Invalid(f"{name} cannot be tried for this study: leave it out", [fault]) from None


def _made(study: StudyCreate, release: ReleaseSpec, withdrawn: Collection[str]) -> Mechanism:
    return choice_of(study.model_copy(update={"release": release}), withdrawn).mechanism


def _release(study: StudyCreate, name: str, epsilon: str) -> ReleaseSpec:
    """The release that ``name`` would be at this level, with the study's own Delta, delta and r where it has them."""
    said, d = study.release, len(study.features)
    shared: dict[str, Any] = {
        "mechanism": name,
        "epsilon": epsilon,
        "sensitivity": 1.0 if isinstance(said, IdentityRelease) else said.sensitivity,
    }
    said_delta = getattr(said, "delta", None)
    delta = FAILURE_PROBABILITY if said_delta is None else said_delta
    match name:
        case "auto":  # without a delta it looks for pure epsilon-DP alone, as the study would
            return AutoRelease(delta=said_delta, **shared)
        case "planar_laplace":
            return PlanarLaplaceRelease(**shared)
        case "gaussian":
            return GaussianRelease(delta=delta, **shared)
        case "gaussian_projection":
            if d < PROJECTED_FEATURES_MIN:
                raise Invalid(f"gaussian_projection is for {PROJECTED_FEATURES_MIN} features or more")
            r = said.r if isinstance(said, GaussianProjectionRelease) else PROJECTION_COLUMNS
            return GaussianProjectionRelease(delta=delta, r=r, **shared)
        case _:
            r = said.r if isinstance(said, PoGpUcbRelease) else 1  # by the paper's rule, once the rows are known
            return PoGpUcbRelease(delta=delta, r=r, acknowledge_refuted=True, **shared)
