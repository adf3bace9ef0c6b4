"""Known rows with errors: many rows known roughly serve an attacker like a few known exactly."""

import numpy as np

from blindopt.wire import Finding
from curator_service.releases.attacks.known_rows import REPETITIONS, finding, rebuild, versus_blind
from curator_service.releases.attacks.scene import Scene, percent

ERROR = 0.1
"""Standard deviation of the errors of what the attacker knows, per coordinate and in Delta."""
WITHIN = 0.25
TIMES = 10


def attack(scene: Scene, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Finding | None:
    """The share of other rows rebuilt to within Delta/4 by least squares on 10 (d+1) rows known roughly."""
    count, public = TIMES * (scene.x.shape[1] + 1), scene.public
    rebuilt = rebuild(scene, count, WITHIN, rng, repetitions, error=ERROR * public.unit)
    if rebuilt is None:
        return None
    share, _, _ = rebuilt.interval()
    near = f"to within a quarter of {public.name}"
    sentence = (
        f"An attacker who knows {count} of the records, each value with an error of a tenth of {public.name}, rebuilds "
        f"{percent(share)} of the others {near}; its guesses are {public.off_by(rebuilt.distance)}"
        f"{versus_blind(rebuilt)}."
    )
    return finding("known_rows_noisy", scene, rebuilt, near, sentence)
