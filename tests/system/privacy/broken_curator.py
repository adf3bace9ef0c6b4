"""A curator whose privacy is broken on purpose, for controls: `BROKEN=... python -m ...broken_curator serve`.

Its requests, its replies and what it says of itself are those of an honest one.
"""

import os

import numpy as np

from blindopt.wire import amount
from curator_service.cli import main
from curator_service.privacy import answers, noise
from curator_service.privacy.noise import laplace
from curator_service.releases import releases
from curator_service.tuning import tunings


def twice_the_epsilon() -> None:
    """Noise for twice the epsilon that is claimed: B + R where 2 (B + R) should be."""
    of_answers, released = answers.mechanism_of, releases.mechanism_of

    def doubled(said):
        return said.model_copy(update={"epsilon": str(2 * amount(said.epsilon))}) if hasattr(said, "epsilon") else said

    answers.mechanism_of = lambda answers, *persons: of_answers(doubled(answers), *persons)
    releases.mechanism_of = lambda spec, chosen, sample: released(spec, doubled(chosen), sample)


def eight_times_the_epsilon_in_tunings() -> None:
    """Draws of tunings for eight times the epsilon that is told and charged."""
    made = tunings.Tunings._job

    def job(self, identity, spec, charged=None):
        if charged is not None:  # to be run
            eightfold = str(8 * amount(spec.budget.epsilon))
            spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"epsilon": eightfold})})
            charged = eightfold, charged[1]
        return made(self, identity, spec, charged)

    tunings.Tunings._job = job


def seeded() -> None:
    """Noise of the right law from a generator with a seed: started again, it draws the same again."""
    rng = np.random.default_rng(0)
    laplace.integers = lambda count, scale: np.rint(rng.laplace(scale=scale, size=count))
    noise.GaussianLaw.add = lambda law, block: block + rng.normal(0, law.sd, block.shape)


if __name__ == "__main__":
    ways = twice_the_epsilon, eight_times_the_epsilon_in_tunings, seeded
    {way.__name__: way for way in ways}[os.environ["BROKEN"]]()
    main()
