"""What an owner offers a vendor: a study as the vendor sees it, in sentences."""

from dataclasses import dataclass
from math import log

from blindopt import wire
from blindopt.answer_worth import AnswerLaw, carried, law_of
from blindopt.display import counted

_QUERIES_MAX = 100_000
_SOURCES = {
    "column": "Answers come at once.",
    "inbox": "People measure, so an answer takes hours or days.",
    "webhook": "A system of the owner measures, so an answer takes as long as its measurement.",
}
_NOISE = {
    "gaussian": "Gaussian noise",
    "planar_laplace": "planar Laplace noise",
    "laplace_each": "Laplace noise in each column",
    "gaussian_projection": "Gaussian noise after a secret projection",
    "random_projection": "a secret projection",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A study as its owner offers it. ``used``: measurements that this vendor's runs have used; ``str()``: in words.

    >>> print(vendor.offer("grant.json"))  # doctest: +SKIP
    """

    study: wire.StudyView
    used: int = 0

    @property
    def remaining(self) -> int | None:
        """How many measurements this vendor may still query, if no other vendor does; None without a cap."""
        cap = self.study.budget.queries
        return None if cap is None else max(0, cap - self.used)

    @property
    def queries(self) -> int | None:
        """How many queries a run asks for if it says no number: all that remain; None without a cap."""
        return None if self.remaining is None else min(max(1, self.remaining), _QUERIES_MAX)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The candidates and the goal, who measures, what an answer is, the caps, and what the answers are worth."""
        study, law = self.study, law_of(self.study.answers)
        of_groups, caps = study.mechanism == "groups", study.budget
        worth = [] if law is None or of_groups or not self.remaining else [carried(law, self.remaining)]
        limits = [] if caps.queries is None else [f"The owner allows {caps.queries:,} measurements{self._used}."]
        for cap, unit in ((caps.epsilon_per_row, "of one record"), (caps.epsilon_total, "in total")):
            limits += [] if cap is None else [f"The release and all answers use at most epsilon {cap} {unit}."]
        return [
            self._candidates,
            _SOURCES[study.measurement_source],
            _answer(law, of_groups=of_groups),
            *(limits or ["No cap limits your measurements."]),
            *worth,
        ]

    @property
    def _used(self) -> str:
        return f", of which your runs used {self.used:,}" if self.used else ""

    @property
    def _candidates(self) -> str:
        study, noise = self.study, "without noise"
        if study.noise.sd:
            noise = f"with {_NOISE[study.noise.family]} (standard deviation {study.noise.sd:.3g} in scaled units)"
        elif study.noise.family != "none":
            noise = f"after {_NOISE[study.noise.family]}"
        kind = "groups of records" if study.mechanism == "groups" else "candidates"
        wish = sought(study.goal, study.direction)
        return f"{study.n:,} {kind}, {counted(study.r, 'column')} {noise}. The owner looks for {wish}."


def sought(goal: wire.Goal, direction: str) -> str:
    """What a search looks for, in words."""
    if isinstance(goal, wire.FindBest):
        return f"the {'largest' if direction == 'maximize' else 'smallest'} outcome"
    good = f"at {'least' if direction == 'maximize' else 'most'} {goal.threshold or 0:.6g}"
    if goal.share is not None:
        good = f"the best {100 * goal.share:.3g} %"
    return f"as many good ones as possible: {good}"


def _answer(law: AnswerLaw | None, *, of_groups: bool) -> str:
    mean = "the mean outcome of a group" if of_groups else "the outcome"
    if law is None:
        return f"Each answer is {mean} as it was measured."
    if of_groups:
        return f"Each answer is {mean}, with noise. It uses epsilon {law.answers.epsilon} of each of its records."
    low, high = (f"{law.answers.centre + sign * law.size:.4g}" for sign in (-1, 1))
    sent = {
        "laplace": f"within {law.size * log(20):.3g} of {mean}, 95 times in 100",
        "one_bit": f"one of two values, {low} or {high}",
        "piecewise": f"a number from {low} to {high}, more often near {mean}",
    }[law.mechanism]
    return f"Each answer is {sent}. It uses epsilon {law.answers.epsilon} of its record."
