"""The view of an attacker, and texts for findings."""

from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Matrix
from blindopt.wire import Feature, GroupsRelease, IdentityRelease, NoiseLaw, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms.mechanism import Mechanism

EXACT = 1e-6
"""Below this share of Delta a guess is exact up to rounding."""


HIDDEN = "the hidden change"
"""What sentences call the largest change of one record that a release hides."""


@dataclass(frozen=True, slots=True)
class Public:
    """The public parameters of a study: the mechanism's law, and Delta in scaled units (1 where there is none)."""

    law: NoiseLaw
    rotated: bool
    unit: float
    name: str
    epsilon: str | None
    delta: float

    @classmethod
    def of(cls, spec: StudyCreate, mechanism: Mechanism) -> "Public":
        release, law = spec.release, mechanism.noise(len(spec.features))
        if isinstance(release, IdentityRelease | GroupsRelease):
            epsilon = getattr(release, "epsilon", None)
            return cls(law, rotated=False, unit=1.0, name="a scaled unit", epsilon=epsilon, delta=0.0)
        return cls(
            law,
            rotated=bool(getattr(release, "rotate", False)),
            unit=release.sensitivity,
            name=HIDDEN,
            epsilon=release.epsilon,
            # The mechanism's: a draft may grant a delta that its mechanism does without.
            delta=getattr(mechanism, "delta", None) or 0.0,
        )

    @property
    def shows_x(self) -> bool:
        """Whether a row of Z is the row of X itself, with or without noise."""
        return self.law.family in ("none", "gaussian", "planar_laplace") and not self.rotated

    @property
    def noise_sd(self) -> float:
        """The standard deviation of the noise per coordinate; 0 without noise."""
        return self.law.sd or 0.0

    def off_by(self, distance: float) -> str:
        """The median error of guesses, in words."""
        return f"off by {self.times(distance)} in the median" if distance else "exact"

    def times(self, distance: float) -> str:
        """A distance in scaled units as a multiple of the hidden change, in words."""
        share = distance / self.unit
        multiple = f"{share:.1e}" if 0 < share < EXACT else f"{share:.2g}"
        return f"{multiple} times {HIDDEN}" if self.name == HIDDEN else f"{multiple} scaled units"


@dataclass(frozen=True, slots=True, repr=False)
class Scene:
    """Rows of X (m, d) to judge by, and the rows of Z (m, r) of the same records, which the attacker sees.

    They are a random part of the ``of`` rows of the study.
    """

    x: Matrix
    z: Matrix
    public: Public
    of: int

    def __repr__(self) -> str:
        return f"Scene({len(self.x)} rows)"

    @property
    def tried_on(self) -> str:
        """The end of the sentence of a finding that is based on a part of the rows; else an empty text."""
        return f" (Tried on {len(self.x):,} of the {self.of:,} records.)" if len(self.x) < self.of else ""


def percent(share: float) -> str:
    """A share in words, where nothing but 0 is rounded to none and nothing but 1 to all.

    >>> percent(0.0), percent(0.000412), percent(0.2134), percent(0.99999), percent(1.0)
    ('none', '0.041 %', '21.3 %', 'more than 99.9 %', '100 %')
    """
    if share in (0.0, 1.0):
        return "none" if share == 0 else "100 %"
    if share > 0.999:
        return "more than 99.9 %"
    return f"{100 * share:.3g} %" if share >= 0.01 else f"{100 * share:.2g} %"


def as_rows(x: Matrix) -> ScaledRows:
    """Rows (m, d) in scaled units, wrapped as a mechanism takes them."""
    wide = [Feature(column=f"x{j}", lower=-1e50, upper=1e50, scale=1.0) for j in range(x.shape[1])]
    return ScaledRows(x, list(range(x.shape[1])), wide, np.arange(len(x)))


def draw(mechanism: Mechanism, x: Matrix) -> Matrix:
    """A release (m, r) of rows in scaled units (m, d), to be thrown away."""
    z = np.empty((len(x), mechanism.columns(x.shape[1])))
    mechanism.draw(as_rows(x), z)
    return z
