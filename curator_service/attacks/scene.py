"""What an attacker looks at, and the words for what it found."""

from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import Feature, IdentityRelease, NoiseLaw, StudyCreate
from curator_service.release.mechanism import Mechanism
from curator_service.scaling import ScaledRows

EXACT = 1e-6
"""Below this share of Delta a guess is right but for rounding."""


@dataclass(frozen=True, slots=True)
class Public:
    """What everybody knows of a study: the mechanism's law, and Delta in scaled units (1 where there is none)."""

    law: NoiseLaw
    rotated: bool
    unit: float
    name: str
    epsilon: str | None
    delta: float

    @classmethod
    def of(cls, spec: StudyCreate, mechanism: Mechanism) -> "Public":
        """From a draft and the mechanism that runs."""
        release, law = spec.release, mechanism.noise(len(spec.features))
        if isinstance(release, IdentityRelease):
            return cls(law, rotated=False, unit=1.0, name="a scaled unit", epsilon=None, delta=0.0)
        return cls(
            law,
            rotated=bool(getattr(release, "rotate", False)),
            unit=release.sensitivity,
            name="Delta",
            epsilon=release.epsilon,
            # Without a delta in its law, a mechanism promises pure epsilon-DP whatever the draft has.
            delta=0.0 if law.family == "planar_laplace" else getattr(release, "delta", None) or 0.0,
        )

    @property
    def shows_x(self) -> bool:
        """Whether a row of Z is the row of X itself, or that with noise."""
        return self.law.family in ("none", "gaussian", "planar_laplace") and not self.rotated

    @property
    def noise_sd(self) -> float:
        """Per coordinate; 0 where no noise is added."""
        return self.law.sd or 0.0

    def off_by(self, distance: float) -> str:
        """How far guesses lie from the truth, in the median, in words."""
        return f"off by {self.times(distance)} in the median" if distance else "exact"

    def times(self, distance: float) -> str:
        """A distance in scaled units as a multiple of Delta."""
        share = distance / self.unit
        multiple = f"{share:.1e}" if 0 < share < EXACT else f"{share:.2g}"
        return f"{multiple} Delta" if self.name == "Delta" else f"{multiple} scaled units"


@dataclass(frozen=True, slots=True, repr=False)
class Scene:
    """Rows of X (m, d), which judge, and rows of Z (m, r), which the attacker sees: row by row the same people.

    ``of`` is how many rows the study has. A scene shows a random part of them.
    """

    x: Matrix
    z: Matrix
    public: Public
    of: int

    def __repr__(self) -> str:
        return f"Scene({len(self.x)} rows)"

    @property
    def tried_on(self) -> str:
        """The end of a sentence where a part stands for the whole."""
        return f" (Tried on {len(self.x):,} of the {self.of:,} rows.)" if len(self.x) < self.of else ""


def percent(share: float) -> str:
    """A share in words that never rounds some to none or most to all.

    >>> percent(0.0), percent(0.000412), percent(0.2134), percent(0.99999), percent(1.0)
    ('none', '0.041 %', '21.3 %', 'more than 99.9 %', '100 %')
    """
    if share in (0.0, 1.0):
        return "none" if share == 0 else "100 %"
    if share > 0.999:
        return "more than 99.9 %"
    return f"{100 * share:.3g} %" if share >= 0.01 else f"{100 * share:.2g} %"


def as_rows(x: Matrix) -> ScaledRows:
    """Rows that are in scaled units already (m, d), as a mechanism takes them."""
    wide = [Feature(column=f"x{j}", lower=-1e50, upper=1e50, scale=1.0) for j in range(x.shape[1])]
    return ScaledRows(x, list(range(x.shape[1])), wide, np.arange(len(x)))


def draw(mechanism: Mechanism, x: Matrix) -> Matrix:
    """A release of rows in scaled units (m, d) as (m, r), to be thrown away."""
    z = np.empty((len(x), mechanism.columns(x.shape[1])))
    mechanism.draw(as_rows(x), z)
    return z
