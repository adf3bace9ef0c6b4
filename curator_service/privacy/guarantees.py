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
                f"({spec.epsilon}, {spec.delta:g})-differential privacy of each row's features: datasets that differ "
                f"in one row, moved by at most {spec.sensitivity:g} in scaled units, give candidates that an attacker "
                f"can hardly tell apart, whatever else it knows. {EXACT_ANSWERS}"
            )
