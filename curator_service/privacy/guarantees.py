"""What is promised, in words. Every guarantee text of the product is made here, from a study's state."""

from curator_service.privacy.choice import Concrete, concrete
from shared.wire import (
    GaussianProjectionRelease,
    GaussianRelease,
    IdentityRelease,
    NoAnswerNoise,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    StudyCreate,
)

EXACT_ANSWERS = (
    "The measurement y of each queried row is released without privacy noise, and the number of rows is public."
)


def guarantee(spec: StudyCreate) -> str:
    """The guarantee of a study, in words for every party."""
    return f"{_release(concrete(spec)[0], len(spec.features))} {_answers(spec)}"


def not_protected(spec: StudyCreate) -> list[str]:
    """What a study does not promise, in words for every party."""
    return [EXACT_ANSWERS] if isinstance(spec.answers, NoAnswerNoise) else []


def _release(release: Concrete, d: int) -> str:
    match release:
        case IdentityRelease():
            return "None: the candidates are the records themselves, declared public by their owner."
        case PoGpUcbRelease():
            return (
                "As published, refuted: no differential privacy; "
                f"{d + 1} known rows reconstruct the rest where r >= {d}, and r exact linear functionals of every "
                f"other row where r < {d}."
            )
        case GaussianRelease() | GaussianProjectionRelease():
            return (
                f"({release.epsilon}, {release.delta!r})-differential privacy of each row's features: for two datasets "
                f"that differ in one row, moved by at most {release.sensitivity!r} in scaled units, no event is more "
                f"than e^{release.epsilon} times likelier under one than under the other, but for {release.delta!r}, "
                "whatever an attacker knows."
            )
        case PlanarLaplaceRelease():
            return (
                f"{release.epsilon}-differential privacy of each row's features: for two datasets that differ in one "
                f"row, moved by at most {release.sensitivity!r} in scaled units, no event is more than "
                f"e^{release.epsilon} times likelier under one than under the other, whatever an attacker knows."
            )


def _answers(spec: StudyCreate) -> str:
    if isinstance(spec.answers, NoAnswerNoise):
        return EXACT_ANSWERS
    one = (
        f"Each released y is {spec.answers.epsilon}-differentially private: no other value of y would make it more "
        f"than e^{spec.answers.epsilon} times likelier. The number of rows is public, and which rows are asked is "
        "chosen by the modeler."
    )
    if spec.answers.plays == "mean":
        one += " Several plays of a row in one query are released once, as their mean: so much holds for all of them."
    if spec.privacy_unit == "answer":
        return f"{one} Each answer is counted as another person's."
    cap = spec.budget.epsilon_per_row
    added = "Answers about one row add up, with the release"
    return f"{one} {added}, to {cap} at most." if cap else f"{one} {added}: the study sets no cap on the sum."
