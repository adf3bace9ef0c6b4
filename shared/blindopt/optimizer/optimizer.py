"""The product's optimizer without a server: the caller queries, the optimizer chooses."""

import math
import operator
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex, get_args

import numpy as np

from blindopt import display, faults, wire
from blindopt.arguments import checked, checked_methods, number_of
from blindopt.arrays import Vector
from blindopt.errors import Invalid, LoopEnded
from blindopt.optimizer.chooser import Over, Proposal, RowChooser, passport_of, points_of, recommendation_of
from blindopt.optimizer.columns import numbers_of
from blindopt.optimizer.defaults import PublicCandidates, Study, plan_of_run
from blindopt.wire.base import parsed
from blindopt.wire.run import NEWEST, Engine

OUTCOME_MAX = 1e305
"""The largest outcome: differences of two are still numbers."""
_NOWHERE = {"curator_url": "http://localhost", "study_id": f"std_{'0' * 16}"}
"""Where a run would send its queries: settings are those of a run, and are checked as these are."""


class Moments(NamedTuple):
    """Posterior mean and standard deviation of f at some candidates (m,), in units of the measurement.

    >>> Moments(np.zeros(2), np.ones(2)).sd
    array([1., 1.])
    """

    mean: Vector
    sd: Vector


class Outcome(NamedTuple):
    """What was reported of a candidate, as ``tell`` takes it; ``y`` is None if it was declined.

    >>> Outcome(3, 1.5)
    Outcome(row=3, y=1.5, variance=None, passport=None)
    """

    row: int
    y: float | None
    variance: float | None = None
    passport: wire.NoisePassport | None = None


@checked_methods
class Optimizer(display.Shown):
    """Chooses which candidate to query next, as a run of the modeler does: ``ask``, measure, ``tell``, and again.

    ``candidates``: (n, r), one row each, finite, numbered from 0 as they stand, whatever the index of a frame. Columns
    of text or categories, also of a frame, become columns of 0 and 1. A column that an index was saved as is refused.
    ``noise`` is the law of their noise, None for exact ones; ``kernel`` (a ``wire.Kernel`` or its fields) is fitted to
    the answers if it is None. ``algorithm`` is a name, such as "ei", or a type of ``blindopt.wire``; "auto" takes what
    suits the candidates, and ``plan`` says why. ``queries`` is the number of all queries, ``initial_rows`` that of the
    initial ones among them: by default 50 queries follow those that the plan sets. ``maximize``: whether the largest
    outcome is the best. With the same ``seed`` and answers it makes the same choices, to the last bit; without one it
    draws a seed.

    ``observations`` are past outcomes, which use up no ``queries``: (row, y), (row, y, variance), dicts or a frame
    of these fields, or the ``history`` of an optimizer. A candidate without y was declined. The first ``ask`` makes the
    plan; each outcome that was told before it takes the place of an initial query. From the history of a search that
    was interrupted, "ei" goes on with the choices that it would have made.

    ``goal`` says what to find: the best candidate, or with ``{"kind": "many", "threshold": 0.3}`` or ``{"kind": "many",
    "share": 0.01}`` as many good ones as possible: ``recommendation().good`` lists them. A stated threshold finds more.

    With ``study``, a curator's view of a study, the choices are those of a run of that study: noise, kernel and
    direction are then the study's. ``stop`` are rules to end early, such as ``{"target": 3}``. With ``batch_size``,
    ``ask_batch`` has the candidates that a run queries together: report them in its order. ``settings`` are further
    ones of a run, such as ``fit``. ``engine`` is the version of the rules, as in ``plan`` (None: the newest): an
    earlier history goes on as it began.

    Raises Invalid for settings or candidates that no algorithm has.

    >>> optimizer = Optimizer(np.linspace(0.0, 1.0, 21)[:, None], seed=1, queries=15)
    >>> for _ in range(15):
    ...     i = optimizer.ask()
    ...     optimizer.tell(i, -((i / 20 - 0.3) ** 2))
    >>> optimizer.recommendation().row
    6
    """

    @checked
    def __init__(
        self,
        candidates: Any = None,
        *,
        noise: wire.NoiseLaw | Mapping[str, Any] | None = None,
        kernel: wire.Kernel | Mapping[str, Any] | None = None,
        maximize: bool = True,
        seed: int | None = None,
        algorithm: str | wire.AlgorithmChoice | Mapping[str, Any] = "auto",
        queries: int | None = None,
        initial_rows: int | None = None,
        batch_size: int = 1,
        stop: wire.StopRules | Mapping[str, Any] | None = None,
        observations: Any = (),
        study: wire.StudyView | None = None,
        **settings: Any,
    ) -> None:
        if candidates is None or "bounds" in settings:
            raise Invalid(
                "candidates must be a table of the points to choose from, one row each; of ranges (bounds) list the "
                "points of a grid or a Sobol sequence (see What is blindopt, What it does not search)"
            )
        engine: Engine | None = settings.pop("engine", None)
        self.candidates, self._reasons = numbers_of(candidates)
        self.seed = secrets.randbelow(2**32) if seed is None else seed
        named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
        fields = {"kernel": kernel, "seed": self.seed, "algorithm": named, "queries": queries}
        fields |= {"initial_rows": initial_rows, "batch_size": batch_size, "stop": stop or {}} | settings
        spec = parsed(wire.RunSpec, _NOWHERE | fields, {"algorithm.name": "algorithm"})
        n, r = self.candidates.shape
        direction: Literal["maximize", "minimize"] = "maximize" if maximize else "minimize"
        law = parsed(wire.NoiseLaw, noise) if isinstance(noise, Mapping) else noise or wire.NoiseLaw(family="none")
        public = PublicCandidates(n=n, r=r, direction=direction, kernel=None, noise=law)
        about: Study = study or public
        if (about.n, about.r) != (n, r):
            raise Invalid(f"the candidates are {n} x {r}, those of the study {about.n} x {about.r}")
        versions = get_args(Engine)
        if engine not in (None, *versions):
            raise Invalid(f"engine must be one of {versions}, or None for the newest")
        self._built: RowChooser | None = None
        self._settings, self._engine = (spec, about), engine or NEWEST
        self._has_begun = False  # the first ``ask`` makes the plan: what is reported before is from before the run
        self._pending: list[Proposal] = []  # of the last batch, and not reported yet
        self._open: set[int] = set()  # candidates that were asked for, in any batch, and not reported yet
        self.history: list[Outcome] = []
        """Every report, in order; y is None for a candidate that was not measured."""
        for number, outcome in enumerate(_outcomes(observations), start=1):
            try:
                self._tell_past(outcome)
            except Invalid as error:
                raise Invalid(f"observation {number}: {error}") from None
        _ = self._chooser  # settings that no algorithm has are refused here

    def _tell_past(self, outcome: Mapping[str, Any]) -> None:
        if unknown := next((str(name) for name in outcome if name not in Outcome._fields), None):
            raise Invalid(f"it has no field {unknown}{faults.nearest(unknown, Outcome._fields)}")
        if "row" not in outcome:
            raise Invalid("it has no row, the number of its candidate")
        if outcome.get("y") is None:
            self.decline(outcome["row"])
        else:
            self.tell(outcome["row"], **{name: outcome[name] for name in outcome if name != "row"})

    @property
    def _chooser(self) -> RowChooser:
        if self._built is None:
            past = [_observation(outcome) for outcome in self.history if outcome.y is not None]
            declined = [outcome.row for outcome in self.history if outcome.y is None]
            plan = plan_of_run(*self._settings, past, engine=self._engine)
            plan = plan.model_copy(update={"reasons": [*plan.reasons, *self._reasons]})
            self._built = RowChooser(*self._settings, self.candidates, past, declined=declined, plan=plan)
        return self._built

    @property
    def plan(self) -> wire.Plan:
        """The settings, and why those that were left open are as they are."""
        return self._chooser.plan

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit of the kernel; None if there is none."""
        return self._chooser.fitted

    @property
    def warnings(self) -> list[str]:
        """What the answers so far say against the model, in words."""
        return self._chooser.warnings

    def propose(self) -> Proposal | None:
        """Return the next candidate with the values that led to its choice; None when the loop has ended."""
        self._pending = self._pending or self._chooser.next()
        self._has_begun = True
        self._open.update(proposal.row for proposal in self._pending)
        return next(iter(self._pending), None)

    def ask(self) -> int:
        """Return the number of the candidate to query next: the same one until ``tell``.

        Raises LoopEnded when all queries are used up, no candidate remains, or a stop rule holds.
        """
        return self.ask_batch()[0]

    def ask_batch(self) -> list[int]:
        """Return the candidates to query together, ``batch_size`` or fewer: those of a batch that are not reported yet.

        There are fewer where the initial candidates end, because the model is first fitted when all of them are
        reported, where the queries end, and while others of the batch are not reported. Raises LoopEnded as ``ask``
        does.
        """
        if self.propose() is None:
            raise LoopEnded(str(self._chooser.ended_because), self._chooser.seen)
        return [proposal.row for proposal in self._pending]

    def tell(
        self,
        i: SupportsIndex,
        y: SupportsFloat,
        *,
        variance: float | None = None,
        passport: wire.NoisePassport | Mapping[str, Any] | None = None,
    ) -> None:
        """Report the outcome ``y`` of candidate ``i``. One that ``ask`` did not choose counts as a past outcome.

        ``variance`` is that of its noise, if it is known. 0 says that the outcome is exact: the loop ends when all
        candidates have one, unless ``repeats`` is "algorithm". ``passport`` is the noise description of a curator's
        answer. For an experiment that failed, and has no outcome, call ``decline``. Raises Invalid unless ``y`` is a
        finite number from -1e305 to 1e305.
        """
        if variance is not None and passport is not None:
            raise Invalid("give variance or passport, not both: the passport states the noise")
        outcome = number_of(y)
        if outcome is None or not math.isfinite(outcome):
            raise Invalid("y must be a finite number; report a candidate without an outcome by decline(i)")
        if abs(outcome) > OUTCOME_MAX:
            raise Invalid(f"y must be from -{OUTCOME_MAX:g} to {OUTCOME_MAX:g}: report it in a larger unit")
        if variance is not None:
            parsed(wire.NoisePassport, {"measurement_variance": variance}, {"measurement_variance": "variance"})
        if isinstance(passport, Mapping):
            passport = parsed(wire.NoisePassport, passport)
        self._take(Outcome(candidate_number(i, len(self.candidates)), outcome, variance, passport))

    def decline(self, i: SupportsIndex) -> None:
        """Report that candidate ``i`` has no outcome, as after a failed experiment: it is not chosen again."""
        self._take(Outcome(candidate_number(i, len(self.candidates)), None))

    def _take(self, outcome: Outcome) -> None:
        row, chooser, is_trial = outcome.row, self._built, outcome.row in self._open
        if chooser is None or not self._has_begun:
            self._built = None
        elif outcome.y is None:
            (chooser.decline if is_trial else chooser.rule_out)(row)
        elif is_trial:
            chooser.observe(row, outcome.y, passport_of(_observation(outcome)))
        else:
            chooser.remember(_observation(outcome))
        self._open.discard(row)
        self._report(row)
        self.history.append(outcome)

    def _report(self, row: int) -> None:
        """Take a candidate from the batch; after one of the caller's own, the next batch is chosen anew."""
        position = next((k for k, proposal in enumerate(self._pending) if proposal.row == row), None)
        self._pending = [] if position is None else self._pending[:position] + self._pending[position + 1 :]

    def recommendation(self, over: Over = "asked") -> wire.Recommendation | None:
        """Return the best ``over`` the queried candidates ("asked") or "all"; None before the first outcome.

        Its ``interval`` is that of the candidate's mean outcome, and ``next_interval`` that of its next measurement:
        under the model, 95 % if it is right. With the ``goal`` many, ``good`` has the good candidates.
        """
        return recommendation_of(self._chooser, over)

    def posterior(self, rows: Any = None) -> Moments:
        """Return the posterior of f at ``rows`` (m,), all candidates if None. Raises Invalid without a model."""
        n = len(self.candidates)
        if not isinstance(rows, Iterable | None):
            raise Invalid.at("rows", "must be a list of numbers of candidates, or None for all")
        numbers = np.arange(n) if rows is None else np.array([candidate_number(i, n) for i in rows], dtype=np.intp)
        points = points_of(self._chooser, numbers)
        return Moments(np.array([point.mean for point in points]), np.array([point.sd for point in points]))

    def __repr__(self) -> str:
        n, r = self.candidates.shape
        return f"Optimizer({n} x {r}, {self.plan.algorithm.name}, seed {self.seed}, {len(self.history)} outcomes)"

    def _tables(self) -> list[display.Table]:
        best = self.recommendation()
        values: dict[str, object] = {
            "Algorithm": self.plan.algorithm.name,
            "Seed": self.seed,
            "Outcomes": len(self.history),
        }
        shown = {} if best is None else {"Recommended candidate": best.row, "Mean": best.mean, "sd": best.sd}
        return [display.facts(values | shown, caption="Optimizer")]


def _outcomes(observations: Any) -> Iterator[Mapping[str, Any]]:
    """The fields of each past outcome. A gap in a frame is a field that is not given."""
    if hasattr(observations, "columns"):
        names = [str(name) for name in observations.columns]
        rows = zip(*(np.asarray(observations[name]).tolist() for name in observations.columns), strict=True)
        yield from ({name: value for name, value in zip(names, row, strict=True) if value == value} for row in rows)
        return
    if not isinstance(observations, Iterable) or isinstance(observations, str | bytes | Mapping):
        raise Invalid("observations must be a list of (row, y), a frame, or the history of an optimizer")
    for number, outcome in enumerate(observations, start=1):
        if isinstance(outcome, Mapping):
            yield outcome
        elif isinstance(outcome, Sequence) and 2 <= len(outcome) <= len(Outcome._fields):
            yield Outcome(*outcome)._asdict()
        else:
            raise Invalid(f"observation {number} must be (row, y), (row, y, variance) or a dict of these fields")


def _observation(outcome: Outcome) -> wire.Observation:
    row, y, variance, passport = outcome
    assert y is not None, "a declined candidate has no observation"
    return wire.Observation.model_construct(row=row, y=y, noise_variance=variance, passport=passport)


def candidate_number(candidate: SupportsIndex, n: int) -> int:
    """Return the number of one of ``n`` candidates. Raises Invalid for what is no whole number from 0 to n - 1."""
    try:
        number = operator.index(candidate)
    except TypeError:
        number = -1
    if not 0 <= number < n:
        raise Invalid(f"a candidate is a whole number from 0 to {n - 1}")
    return number
