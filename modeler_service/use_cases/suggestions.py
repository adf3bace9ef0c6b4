"""Rows for the next query of vendors with a loop of their own: the choices of a run, and nothing is stored."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import CuratorRefused, Draining, Invalid, NumericalFailure, ProtocolViolated, RateLimited, Remote
from blindopt.gp.progress import Tick
from blindopt.optimizer.algorithms.factory import memory_of
from blindopt.optimizer.choosing.chooser import RowChooser
from blindopt.optimizer.choosing.defaults import Study, Wishes, plan_for
from blindopt.optimizer.choosing.estimates import recommendation_of
from blindopt.wire.algorithms.plans import BATCHED, FITTED
from modeler_service.runs.addresses import check_curator
from modeler_service.runs.candidates import fetch_candidates
from modeler_service.runs.curator_session import open_session
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext

WAITING_MAX = 8
"""The most requests that wait for a thread: each holds its body in memory."""


_ENDING = "the service is ending: ask again"


class Suggestions:
    """Answers requests for suggestions in threads of its own, a few at once.

    It stores nothing but log records of exchanges with a curator, and the candidates, which runs use too.
    """

    def __init__(self, context: ServiceContext, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._pool = ThreadPoolExecutor(settings.concurrent_suggestions, thread_name_prefix="suggestion")
        self.under_way = 0
        """The requests that are answered or wait for a thread."""
        self._closing = False

    def close(self) -> None:
        """End the requests under way after their next step."""
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def of(self, read: Callable[[], wire.SuggestionRequest], actor: str) -> bytes:
        """Return the reply to a request, in JSON. Raises RateLimited if too many requests wait.

        ``read`` is called in the thread too, so that a large body does not block the event loop.
        """
        if self.under_way >= self._settings.concurrent_suggestions + WAITING_MAX:
            raise RateLimited(1)
        self.under_way += 1
        future: Future[bytes] | None = None
        try:
            future = self._pool.submit(self._reply, read, actor)
            return await asyncio.wrap_future(future)
        except (RuntimeError, asyncio.CancelledError):
            if self._closing and (future is None or future.cancelled()):  # it came too late, or was still waiting
                raise Draining(_ENDING) from None
            raise
        finally:
            self.under_way -= 1

    def _reply(self, read: Callable[[], wire.SuggestionRequest], actor: str) -> bytes:
        deadline = time.monotonic() + self._settings.suggestion_seconds
        request = read()
        if request.study is not None and request.inline is None:
            study, candidates = self._from_study(request.study, actor, request)
        elif request.inline is not None and request.study is None:
            study, candidates = request.inline, _from_inline(request.inline)
        else:
            raise _invalid("study", "give study or inline: one of the two, not both")
        plan = _plan(request, study)
        _check(request, plan, study)
        self._check_memory(request, plan, *candidates.shape)
        try:
            return self._suggest(request, plan, study, candidates, deadline).model_dump_json().encode()
        except NumericalFailure as error:
            raise _invalid("observations" if request.inline is None else "inline", str(error)) from None
        except MemoryError:
            raise _invalid("observations", "there is not enough memory: send fewer, or start a run") from None

    def _check_memory(self, request: wire.SuggestionRequest, plan: wire.Plan, n: int, r: int) -> None:
        capacity = len(request.observations) + request.count
        # Inline candidates are held as Python numbers, too. The covariance of the outcomes needs room for its factor.
        need = memory_of(plan.algorithm, n, r, capacity) + (40 * n * r if request.inline else 0)
        if isinstance(plan.algorithm, wire.GpRule):
            need += 16 * capacity**2
        if need > self._settings.suggestion_memory_max_bytes:
            raise _invalid(
                "observations",
                f"{n} candidates with {capacity} outcomes need about {need >> 20} MiB, more than "
                "SUGGESTION_MEMORY_MAX_BYTES allows: start a run",
            )

    def _check_time(self, deadline: float) -> None:
        if self._closing:
            raise Draining(_ENDING)
        if time.monotonic() > deadline:
            raise _invalid("observations", "this takes longer than SUGGESTION_SECONDS: send fewer, or start a run")

    # --- a study's candidates ---------------------------------------------------------------------

    def _from_study(
        self, access: wire.StudyAccess, actor: str, request: wire.SuggestionRequest
    ) -> tuple[Study, Matrix]:
        """Fetch study and candidates from a curator. Each exchange is recorded, as in a run."""
        check_curator(self._settings, access.curator_url, "study.curator_url")
        context, settings = self._context, self._settings
        try:
            session = open_session(context, settings, access, access.token, actor, cancelled=lambda: self._closing)
            with session as (curator, study):
                self._check_memory(request, _plan(request, study), study.n, study.r)
                folder = settings.candidates_folder
                candidates = fetch_candidates(curator, study, folder, settings.candidates_max_bytes)
        except Remote as error:
            raise CuratorRefused(error) from None
        except NumericalFailure as error:
            raise _invalid("study", str(error)) from None
        return study, candidates

    # --- choices ----------------------------------------------------------------------------------

    def _suggest(
        self,
        request: wire.SuggestionRequest,
        plan: wire.Plan,
        study: Study,
        candidates: Matrix,
        deadline: float,
    ) -> wire.SuggestionReply:
        chooser = _chooser(request, plan, study, candidates, lambda: self._check_time(deadline))
        for index, observation in enumerate(request.observations):
            self._check_time(deadline)
            _observe(chooser, index, observation)
        self._check_time(deadline)
        proposals = chooser.next()
        return wire.SuggestionReply(
            suggestions=[wire.Suggestion(**asdict(proposal)) for proposal in proposals],
            # A request has no stop rules, which could end a run otherwise.
            ended_because="exhausted" if chooser.ended_because == "exhausted" else None if proposals else "budget",
            recommendation=recommendation_of(chooser, "asked"),
            fitted=chooser.fitted,
            plan=plan,
            warnings=chooser.warnings,
        )


def _invalid(field: str, message: str) -> Invalid:
    return Invalid("no rows can be suggested: errors says where and why", [{"field": field, "message": message}])


def _from_inline(study: wire.InlineStudy) -> Matrix:
    """Return the candidates (n, r). Raises Invalid if they are no matrix, or the noise is incomplete."""
    r = len(study.candidates[0])
    for index, row in enumerate(study.candidates):
        if len(row) != r:
            raise _invalid(f"inline.candidates.{index}", f"has {len(row)} numbers; the first row has {r}")
    if study.noise.family not in ("none", "random_projection") and not 1e-50 <= (study.noise.sd or 0.0) <= 1e50:
        raise _invalid("inline.noise.sd", f"{study.noise.family} noise needs its standard deviation")
    return np.array(study.candidates, dtype=np.float64)


_CONTINUED = 10**15
"""Iterations of a loop that does not say how long it goes on."""


def _wishes(request: wire.SuggestionRequest, iterations: int, algorithm: wire.AlgorithmChoice) -> Wishes:
    names = ("initial_rows", "initial_design", "seed", "repeats", "kernel", "fit")
    values = {name: getattr(request, name) for name in names}
    return Wishes(algorithm=algorithm, iterations=iterations, batch_size=request.count, **values)


def _plan(request: wire.SuggestionRequest, study: Study) -> wire.Plan:
    """Return the plan for a request, whose observations count towards the initial design. Raises Invalid."""
    algorithm = request.algorithm
    if isinstance(algorithm, wire.GpUcb) and algorithm.nugget == "in" and request.count > 1:
        algorithm = wire.GpBucb(**algorithm.model_dump(exclude={"nugget"}) | {"name": "gp_bucb"})
    own = any(observation.noise_variance is not None for observation in request.observations)
    wishes = _wishes(request, request.iterations or _CONTINUED, algorithm)
    plan = plan_for(wishes, study, own_variances=own)
    return plan.model_copy(update={"initial_rows": min(plan.initial_rows, study.n)})


def _check(request: wire.SuggestionRequest, plan: wire.Plan, study: Study) -> None:
    """Check what the types do not. Raises Invalid."""
    spec = plan.algorithm
    if isinstance(plan.fit, wire.Fit) and not isinstance(spec, FITTED):
        raise _invalid("fit", f'{spec.name} takes hyper-parameters as they are given: leave it out, or send "auto"')
    few_private = isinstance(spec, wire.FewArmsSpec) and not isinstance(study.answers, wire.NoAnswerNoise)
    if not (plan.fit or request.kernel or study.kernel or few_private or isinstance(spec, wire.RandomRows)):
        raise _invalid("kernel", f"{spec.name} needs one, and there is none: give one, or send algorithm: auto")
    if request.count > 1 and not isinstance(spec, BATCHED):
        raise _invalid("count", f"{spec.name} chooses one row at a time: for more take auto, ei or thompson")
    if plan.repeats != "algorithm" and isinstance(spec, wire.LdpMoma | wire.Moma):
        raise _invalid("repeats", f"{spec.name} plays each row several times: repeats must be auto or algorithm")
    if request.iterations is None and isinstance(spec, wire.EiDeblurred):
        raise _invalid(
            "iterations", "ei_deblurred explores in the first half of the iterations: say how many there are"
        )
    for index, observation in enumerate(request.observations):
        if observation.row >= study.n:
            raise _invalid(f"observations.{index}.row", f"there are {study.n} candidates, counted from 0")
        if observation.noise_variance is not None and isinstance(spec, wire.FewArmsSpec):
            message = f"{spec.name} takes the noise from the law of the answers: leave it out"
            raise _invalid(f"observations.{index}.noise_variance", message)


def _chooser(
    request: wire.SuggestionRequest, plan: wire.Plan, study: Study, candidates: Matrix, tick: Tick
) -> RowChooser:
    """Build the chooser of a request. Raises Invalid if the algorithm is not for these candidates or answers."""
    initial, outcomes = plan.initial_rows, len(request.observations) + request.count
    iterations = request.iterations if request.iterations is not None else max(outcomes - initial, 0)
    if len(request.observations) > initial + iterations:
        raise _invalid("observations", "there are more than initial_rows and iterations together")
    wishes = _wishes(request, iterations, plan.algorithm)
    default_step = max(len(request.observations) - initial, 0) + 1
    skipped = request.step - default_step if request.step is not None else 0
    try:
        return RowChooser(wishes, study, candidates, plan=plan, outcomes=outcomes, skipped=skipped, tick=tick)
    except ProtocolViolated as error:
        raise _invalid("algorithm", str(error)) from None
    except Invalid as error:
        if getattr(error, "errors", None):  # it names a field already
            raise
        raise _invalid("algorithm", str(error)) from None


def _observe(chooser: RowChooser, index: int, observation: wire.SuggestionObservation) -> None:
    passport = observation.passport
    if observation.noise_variance is not None:
        passport = wire.NoisePassport(measurement_variance=observation.noise_variance)
    try:
        chooser.observe(observation.row, observation.y, passport)
    except ProtocolViolated as error:
        raise _invalid(f"observations.{index}.passport", str(error)) from None
    except (NumericalFailure, ValueError) as error:
        raise _invalid(f"observations.{index}", str(error)) from None
