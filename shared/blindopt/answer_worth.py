"""What private answers are worth: how each is sent, its error, and how much many of them say.

Pure functions of what owner and vendor both see: the answer mechanism of a study and how many answers its caps allow.
"""

from dataclasses import dataclass
from math import ceil, exp, floor, log, log10, sqrt

from blindopt import wire

FEW = 5
"""Answers that are worth fewer exact ones than this find no better record than chance (docs/privacy.md)."""
NEARLY_ALL = 0.8
"""An interval that covers this share of the possible range places nothing."""
_NORMAL_SQUARED = 3.84  # the square of a normal's 95 % quantile
_LARGER = "4"
_SENT = {"laplace": "any number", "one_bit": "two values", "piecewise": "an interval"}


@dataclass(frozen=True, slots=True)
class AnswerLaw:
    """How an answer to a query is drawn, in units of the outcome.

    ``size``: the scale of Laplace noise, or how far an answer of the other mechanisms lies from the centre at most.
    ``variance``: that of an answer about the worst outcome. Sources: as ``wire.answer`` names them.
    """

    answers: wire.PrivateAnswers
    mechanism: str
    epsilon: float
    size: float
    variance: float

    def needed(self, width: float) -> int:
        """Answers about one record that place its outcome within ``width``, with 95 % confidence."""
        return ceil(_NORMAL_SQUARED * self.variance / width**2)

    def worth(self, count: int) -> float:
        """How many exact answers say as much as ``count`` of these, if outcomes spread (sd) over half of B.

        The variance of an exact answer is then s^2, that of a private one s^2 + V.
        """
        return count / (1 + 4 * self.variance / self.answers.value_bound**2)

    def sent(self, outcome: float, unit: str = "") -> str:
        """How the answer about ``outcome`` is drawn, in one sentence."""
        centre, bound = self.answers.centre, self.answers.bound
        offset = min(max(outcome - centre, -bound), bound)
        about = f"An outcome of {_of(outcome, unit)} is sent as"
        if self.mechanism == "laplace":
            return f"{about} a number within {_of(self.size * log(20), unit)} of it, 95 times in 100."
        low, high = _of(centre - self.size, unit), _of(centre + self.size, unit)
        if self.mechanism == "one_bit":
            return f"{about} {low} or {high}, the higher one {50 * (1 + offset / self.size):.0f} times in 100."
        odds = exp(self.epsilon / 2)
        # Wang et al. (2019), Algorithm 2: a window of width (C - 1) bound about (C + 1) / 2 of the offset.
        middle, half = centre + (self.size / bound + 1) / 2 * offset, (self.size - bound) / 2
        inside = f"{odds / (1 + odds):.0%}".replace("%", " times in 100")
        near = f"{_of(middle - half, unit)} to {_of(middle + half, unit)}"
        return f"{about} a number from {low} to {high}, {inside} from {near}."


def law_of(answers: wire.Answers) -> AnswerLaw | None:
    """The law of private answers, each about one person; None for exact ones."""
    answers = wire.concrete_answers(answers)
    if isinstance(answers, wire.NoAnswerNoise):
        return None
    epsilon, bound = float(wire.amount(answers.epsilon)), answers.bound
    size = 2 * bound / epsilon
    variance = 2 * size**2
    if isinstance(answers, wire.OneBitAnswers):
        size = bound / (1 - 2 / (exp(epsilon) + 1))
        variance = size**2
    elif isinstance(answers, wire.PiecewiseAnswers):
        odds = exp(epsilon / 2)
        size = bound * (odds + 1) / (odds - 1)
        variance = 4 * odds / (3 * (odds - 1) ** 2) * bound**2
    return AnswerLaw(answers, answers.mechanism, epsilon, size, variance)


def meaning(answers: wire.Answers, count: int | None, unit: str = "") -> wire.AnswersMeaning | None:
    """What private answers mean, in words and at other levels; ``count``: how many the caps allow. None if exact."""
    law = law_of(answers)
    if law is None:
        return None
    private, width = law.answers, law.answers.value_bound / 5
    needed = law.needed(width)
    used = f"{needed * law.epsilon:.2g}" if needed * law.epsilon < 100 else f"{_about(needed * law.epsilon):,}"
    surest = ceil(1000 / (1 + exp(-law.epsilon))) / 10
    belief = f"someone undecided (50/50) between any two outcomes becomes at most {surest:g} % sure."
    many = f"takes about {_about(needed):,} answers about it. They use epsilon {used}, by the sum."
    sentences = [
        f"From one answer, {belief}",
        law.sent(private.centre - private.value_bound / 2, unit),
        f"To know one record to within {_of(width, unit)} (a tenth of the range) {many}",
    ]
    if count is not None:
        sentences.append(carried(law, count))
    laws = {private.epsilon: law}
    if wire.amount(private.epsilon) < wire.amount(_LARGER):
        laws[_LARGER] = law_of(answers.model_copy(update={"epsilon": _LARGER})) or law
    levels = [
        wire.AnswersLevel(
            epsilon=epsilon,
            sent_as=_SENT[at.mechanism],
            error=sqrt(at.variance),
            worth=None if count is None else at.worth(count),
        )
        for epsilon, at in laws.items()
    ]
    return wire.AnswersMeaning(sentences=sentences, levels=levels)


def carried(law: AnswerLaw, count: int) -> str:
    """How much ``count`` answers carry, in one sentence."""
    if (exact := floor(law.worth(count))) < 1:
        return f"Your {count:,} answers carry less than 1 exact answer."
    return f"Your {count:,} answers carry about as much as {exact:,} exact answer{'s' if exact > 1 else ''}."


def unplaced(answers: wire.Answers, interval: list[float], remaining: int | None) -> str | None:
    """What the interval of a recommendation says of ``answers`` that cannot tell candidates apart; None if they can.

    ``remaining``: how many more the caps allow; None: no cap.
    """
    law = law_of(answers)
    if law is None:
        return None
    low, high = (law.answers.centre + side * law.answers.value_bound for side in (-1, 1))
    if (share := (interval[1] - interval[0]) / (high - low)) < NEARLY_ALL:
        return None
    width = law.answers.value_bound / 5
    covers = "the whole" if share > 0.999 else f"{share:.0%} of the".replace("%", " %")
    more = "" if remaining is None else f", and {remaining:,} {'is' if remaining == 1 else 'are'} left"
    return (
        f"The answers cannot tell candidates apart yet. The interval covers {covers} possible range, {_of(low, '')} to "
        f"{_of(high, '')}. About {_about(law.needed(width)):,} answers about the candidate would place it to within "
        f"{_of(width, '')}{more}."
    )


def _of(number: float, unit: str) -> str:
    return f"{number:.3g} {unit}".rstrip()


def _about(number: float) -> int:
    """A number above 0 to two digits, rounded up."""
    step = float(10 ** max(0, floor(log10(number)) - 1))
    return int(ceil(number / step) * step)
