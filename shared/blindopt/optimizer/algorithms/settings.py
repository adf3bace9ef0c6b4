"""The settings of an algorithm, whichever it is: what a run, its plan and its study say."""

from dataclasses import dataclass
from typing import Literal

from blindopt import wire
from blindopt.gp.parts import Executor
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.wire.answer import NONE
from blindopt.wire.goal import BEST
from blindopt.wire.run import NEWEST, Engine

NO_NOISE = wire.NoiseLaw(family="none")


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """Settings that every algorithm takes; each uses those that it needs.

    ``kernel`` holds the hyper-parameters; None where ``fit`` says how to fit them, or the law of the ``answers`` says
    enough. ``sign`` is -1 for minimization. ``capacity`` is the expected number of outcomes, of which the first
    ``initial`` belong to rows that the algorithm did not choose; it chooses ``horizon`` rows (None: as many as
    ``capacity``). ``noise`` is the law of the release's noise, and ``refine_sd`` the standard deviation of
    that of a second draw of each queried candidate. ``fit`` is None for no fit, and auto for one only if
    there is no kernel that fits; with ``fit_when`` misfit any fit waits for that. ``exact``: an answer is the exact
    value of a record, so the kernel's noise variance is that of a part of f that each record has for itself.
    ``unit_is_row``: answers about one row add up in the privacy budget. ``repeats``: rows may be chosen again once each
    was chosen, by an algorithm that would stop. ``tick`` is called between the parts of a long computation.
    ``executor`` holds the candidates; None: this process. ``goal`` says what the search is for.
    """

    kernel: wire.Kernel | None
    sign: int
    seed: int
    capacity: int
    initial: int = 0
    horizon: int | None = None
    noise: wire.NoiseLaw = NO_NOISE
    refine_sd: float | None = None
    answers: wire.Answers = NONE
    fit: wire.FitChoice = None
    fit_when: Literal["always", "misfit"] = "always"
    exact: bool = False
    unit_is_row: bool = False
    repeats: bool = False
    precision: wire.Precision = "double"
    tick: Tick = NO_TICK
    engine: Engine = NEWEST
    executor: Executor | None = None
    goal: wire.Goal = BEST
