"""Rows to ask next for vendors who keep their own loop: the same choices as a run's, and nothing is kept."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import CuratorRefused, Draining, Invalid, NumericalFailure, ProtocolViolated, RateLimited, Remote
from blindopt.gp.progress import Tick
from blindopt.wire.runs import FITTED
from modeler_service.algorithms.factory import memory_of
from modeler_service.choosing.chooser import RowChooser
from modeler_service.runs.candidates import fetched
from modeler_service.runs.curator_session import met
from modeler_service.runs.posterior_views import recommended
from modeler_service.settings import Settings
from modeler_service.use_cases.addresses import check_address
from service_kit.context.context import ServiceContext

WAITING_MAX = 8
"""Requests that may wait for a thread: each holds its body in memory."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the candidates (n, r): as ``choosing.Problem``."""

    candidates: Matrix
    direction: Literal["maximize", "minimize"]
    kernel: wire.Kernel | None
    noise: wire.NoiseLaw
    answers: wire.Answers
    privacy_unit: Literal["row", "answer"]

    @property
    def n(self) -> int:
        return len(self.candidates)


@dataclass(frozen=True, slots=True)
class Planned:
    """How rows are to be chosen: as ``choosing.Plan``."""

    algorithm: wire.AlgorithmSpec
    iterations: int
    initial_rows: int
    initial_design: Literal["random", "maximin"]
    seed: int
    batch_size: int
    repeats: Literal["algorithm", "never", "after_all"]
    stop: wire.StopRules
    kernel: wire.Kernel | None
    fit: wire.Fit | None


_ENDING = "the service is ending: ask again"


class Suggestions:
    """Answers requests for suggestions in threads of its own, a few at once.

    Nothing is kept but what the log tells of exchanges with a curator, and the candidates, which runs use too.
    """

    def __init__(self, context: ServiceContext, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._pool = ThreadPoolExecutor(settings.concurrent_suggestions, thread_name_prefix="suggestion")
        self._under_way = 0
        self._closing = False

    def close(self) -> None:
        """Leave what is under way after its next step."""
        self._closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def of(self, read: Callable[[], wire.SuggestionRequest], actor: str) -> bytes:
        """The reply to a request, in JSON. RateLimited where too many wait.

        What ``read`` reads is read in a thread too: the event loop answers others meanwhile.
        """
        if self._under_way >= self._settings.concurrent_suggestions + WAITING_MAX:
            raise RateLimited(1)
        self._under_way += 1
        asked: Future[bytes] | None = None
        try:
            asked = self._pool.submit(self._reply, read, actor)
            return await asyncio.wrap_future(asked)
        except (RuntimeError, asyncio.CancelledError):
            if self._closing and (asked is None or asked.cancelled()):  # it came too late, or waited for its turn
                raise Draining(_ENDING) from None
            raise
        finally:
            self._under_way -= 1

    def _reply(self, read: Callable[[], wire.SuggestionRequest], actor: str) -> bytes:
        deadline = time.monotonic() + self._settings.suggestion_seconds
        asked = read()
        if asked.study is not None and asked.inline is None:
            known = self._from_study(asked.study, actor, asked)
        elif asked.inline is not None and asked.study is None:
            known = _from_inline(asked.inline)
        else:
            raise _invalid("study", "give study or inline: one of the two, not both")
        _check(asked, known)
        self._check_memory(asked, known.n, known.candidates.shape[1])
        try:
            return self._suggested(asked, known, deadline).model_dump_json().encode()
        except NumericalFailure as error:
            raise _invalid("observations" if asked.inline is None else "inline", str(error)) from None
        except MemoryError:
            raise _invalid("observations", "there is not enough memory: send fewer, or start a run") from None

    def _check_memory(self, asked: wire.SuggestionRequest, n: int, r: int) -> None:
        capacity = len(asked.observations) + asked.count
        # Candidates of a request are held once more as Python's numbers; and the factor of the outcomes' covariance.
        need = memory_of(asked.algorithm, n, r, capacity) + (40 * n * r if asked.inline else 0)
        if isinstance(asked.algorithm, wire.GpUcb | wire.GpBucb):
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

    def _from_study(self, told: wire.StudyAccess, actor: str, asked: wire.SuggestionRequest) -> Known:
        """What a curator tells of its study. Each exchange with it is recorded, as a run's is."""
        check_address(told.curator_url, "study.curator_url", plain_http=self._settings.allow_plain_http)
        context, settings = self._context, self._settings
        try:
            with met(context, settings, told, told.token, actor, cancelled=lambda: self._closing) as (curator, study):
                self._check_memory(asked, study.n, study.r)
                folder = settings.data_dir / "candidates"
                candidates = fetched(curator, study, folder, settings.candidates_max_bytes)
        except Remote as error:
            raise CuratorRefused(error) from None
        except NumericalFailure as error:
            raise _invalid("study", str(error)) from None
        return Known(candidates, study.direction, study.kernel, study.noise, study.answers, study.privacy_unit)

    # --- choices ----------------------------------------------------------------------------------

    def _suggested(self, asked: wire.SuggestionRequest, known: Known, deadline: float) -> wire.SuggestionReply:
        choosing = _choosing(asked, known, lambda: self._check_time(deadline))
        for place, seen in enumerate(asked.observations):
            self._check_time(deadline)
            _observe(choosing, place, seen)
        self._check_time(deadline)
        found = choosing.next()
        return wire.SuggestionReply(
            suggestions=[wire.Suggestion(**asdict(proposal)) for proposal in found],
            # There are no other rules here that end a run.
            ended_because="exhausted" if choosing.ended_because == "exhausted" else None if found else "budget",
            recommendation=recommended(choosing, "asked"),
            fitted=choosing.fitted,
            warnings=choosing.warnings,
        )


def _invalid(field: str, message: str) -> Invalid:
    return Invalid("no rows can be suggested: errors says where and why", [{"field": field, "message": message}])


def _from_inline(told: wire.InlineStudy) -> Known:
    r = len(told.candidates[0])
    for place, row in enumerate(told.candidates):
        if len(row) != r:
            raise _invalid(f"inline.candidates.{place}", f"has {len(row)} numbers; the first row has {r}")
    if told.noise.family not in ("none", "random_projection") and not 1e-50 <= (told.noise.sd or 0.0) <= 1e50:
        raise _invalid("inline.noise.sd", f"{told.noise.family} noise needs its standard deviation")
    candidates = np.array(told.candidates, dtype=np.float64)
    return Known(candidates, told.direction, told.kernel, told.noise, told.answers, told.privacy_unit)


def _check(asked: wire.SuggestionRequest, known: Known) -> None:
    """What the types cannot tell. Raises Invalid."""
    spec = asked.algorithm
    if asked.fit is not None and not isinstance(spec, FITTED):
        raise _invalid("fit", f"{spec.name} takes hyper-parameters as they are told: leave it out")
    if asked.fit is None and not isinstance(spec, wire.RandomRows) and asked.kernel is None and known.kernel is None:
        raise _invalid("kernel", f"{spec.name} needs one: the study has none")
    if asked.count > 1 and not isinstance(spec, wire.GpUcb | wire.GpBucb | wire.RandomRows):
        raise _invalid("count", f"{spec.name} chooses one row at a time: for more take gp_bucb or random")
    if asked.repeats != "algorithm" and isinstance(spec, wire.LdpMoma | wire.Moma):
        raise _invalid("repeats", f"{spec.name} plays each row several times: repeats must be algorithm")
    for place, seen in enumerate(asked.observations):
        if seen.row >= known.n:
            raise _invalid(f"observations.{place}.row", f"there are {known.n} candidates, counted from 0")
        if seen.noise_variance is not None and isinstance(spec, wire.FewArmsSpec):
            message = f"{spec.name} takes the noise from the law of the answers: leave it out"
            raise _invalid(f"observations.{place}.noise_variance", message)


def _choosing(asked: wire.SuggestionRequest, known: Known, tick: Tick) -> RowChooser:
    """What chooses, before it has seen anything. Raises Invalid for an algorithm that does not fit the candidates."""
    initial, outcomes = min(asked.initial_rows, known.n), len(asked.observations) + asked.count
    iterations = asked.iterations if asked.iterations is not None else max(outcomes - initial, 0)
    if len(asked.observations) > initial + iterations:
        raise _invalid("observations", "there are more than initial_rows and iterations together")
    algorithm = asked.algorithm
    if isinstance(algorithm, wire.GpUcb) and asked.count > 1:
        algorithm = wire.GpBucb(**algorithm.model_dump() | {"name": "gp_bucb"})
    plan = Planned(
        algorithm,
        iterations,
        initial,
        asked.initial_design,
        asked.seed,
        asked.count,
        asked.repeats,
        wire.StopRules(),
        asked.kernel,
        asked.fit,
    )
    usual = max(len(asked.observations) - initial, 0) + 1
    skipped = asked.step - usual if asked.step is not None else 0
    try:
        return RowChooser(plan, known, known.candidates, outcomes=outcomes, skipped=skipped, tick=tick)
    except ProtocolViolated as error:
        raise _invalid("algorithm", str(error)) from None
    except Invalid as error:
        if getattr(error, "errors", None):  # it tells a field already
            raise
        raise _invalid("algorithm", str(error)) from None


def _observe(choosing: RowChooser, place: int, seen: wire.SuggestionObservation) -> None:
    passport = seen.passport
    if seen.noise_variance is not None:
        passport = wire.NoisePassport(measurement_variance=seen.noise_variance)
    try:
        choosing.observe(seen.row, seen.y, passport)
    except ProtocolViolated as error:
        raise _invalid(f"observations.{place}.passport", str(error)) from None
    except (NumericalFailure, ValueError) as error:
        raise _invalid(f"observations.{place}", str(error)) from None
