"""What is promised, in words. Every guarantee text of the product is made here, from a study's state."""

from shared.wire import GaussianRelease, IdentityRelease, PoGpUcbRelease, ReleaseSpec

EXACT_ANSWERS = (
    "The measurement y of each queried row is released without privacy noise, and the number of rows is public."
)


def guarantee(spec: ReleaseSpec, d: int) -> str:
    """The guarantee of a study's release over d features, in words for every party."""
    match spec:
        case IdentityRelease():
            return f"None: the candidates are the records themselves, declared public by their owner. {EXACT_ANSWERS}"
        case PoGpUcbRelease():
            return (
                "As published, refuted: no differential privacy; "
                f"{d + 1} known rows reconstruct the rest where r >= {d}, and r exact linear functionals of every "
                f"other row where r < {d}. {EXACT_ANSWERS}"
            )
        case GaussianRelease():
            return (
                f"({spec.epsilon}, {spec.delta!r})-differential privacy of each row's features: for two datasets that "
                f"differ in one row, moved by at most {spec.sensitivity!r} in scaled units, no event is more than "
                f"e^{spec.epsilon} times likelier under one than under the other, but for {spec.delta!r}, whatever an "
                f"attacker knows. {EXACT_ANSWERS}"
            )
