"""Runs: optimizations at the modeler."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindopt.wire.algorithms.bandits import LdpMoma, Moma
from blindopt.wire.algorithms.fits import Fit, Fitted
from blindopt.wire.algorithms.gp import GpBucb, GpUcb, RandomRows
from blindopt.wire.algorithms.observations import OBSERVATIONS_MAX, Observation, Outcome
from blindopt.wire.algorithms.plans import (
    AUTO,
    BATCHED,
    FITTED,
    IMPROVING,
    AlgorithmChoice,
    Auto,
    FitChoice,
    InitialDesign,
    InitialDesignChoice,
    InitialRows,
    Plan,
    Repeats,
)
from blindopt.wire.base import Name, Page, PositiveFloat, Reply, Request, Seed
from blindopt.wire.connections import CuratorUrl, GrantToken, StudyId
from blindopt.wire.posteriors import Recommendation
from blindopt.wire.queries import NoisePassport
from blindopt.wire.studies import Kernel, StudyView


class StopRules(Request):
    """Rules that end a run early. Checked before each query."""

    target: Outcome | None = Field(
        None, description="Stop when the run has reached this y or a better one; null: no target."
    )
    target_by: Literal["observed", "mean"] = Field(
        "observed",
        description=(
            "observed: a y reaches the target; mean: the best posterior mean of the queried candidates does, for noisy "
            "y."
        ),
    )
    improvement: PositiveFloat | None = Field(
        None,
        description=(
            "Stop when no remaining candidate can beat the best queried one by more than this, in units of y, with "
            "probability 1 - delta_ucb: the largest upper bound minus the largest lower bound of queried candidates. "
            "For gp_ucb (with nugget in) and gp_bucb; null: never."
        ),
    )
    expected_improvement: PositiveFloat | None = Field(
        None,
        description=(
            "Stop when the largest expected improvement on the best queried candidate is below this share of the "
            "standard deviation of the outcomes so far. A rule of thumb without a promise. For ei, and for the second "
            "half of a run of ei_deblurred; null: never."
        ),
    )


RunId = Annotated[str, Field(pattern=r"^run_[0-9a-f]{16}$")]


class RunSpec(Request):
    """One optimization against one study of a curator, as it is stored: without its secret."""

    name: Name = Field("run", description="Name, for people.")
    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: StudyId = Field(description="The study to optimize.")
    algorithm: AlgorithmChoice = Field(
        AUTO, description="Algorithm that chooses candidates; auto: the one that suits the study."
    )
    iterations: int = Field(50, ge=1, le=100_000, description="T: number of queries after the initial ones.")
    initial_rows: InitialRows = None
    seed: Seed | None = Field(
        None,
        description=(
            "Seed of the initial design and of ties: the same seed makes the same choices. Null: one is drawn for the "
            "run, and stored."
        ),
    )
    batch_size: int = Field(
        1,
        ge=1,
        le=100,
        description="Candidates in one query; one for gp_ucb, ei_deblurred, ldp_ata, ldp_tgp, tgp_tight, ata and tgp.",
    )
    repeats: Repeats = "auto"
    initial_design: InitialDesignChoice = None
    stop: StopRules = Field(StopRules(), description="Rules that end the run early.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters; null: those of the study.")
    fit: FitChoice = "auto"
    continue_from: RunId | None = Field(
        None,
        description=(
            "An earlier run of the same study: its answers and past measurements, as they are now, become past "
            "measurements of this one, without a query or a charge."
        ),
    )
    log_key: str | None = Field(
        None,
        max_length=400,
        description="The curator's C2SP verifier key, obtained separately; null: trust and pin the first one.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        name = self.algorithm.name
        if isinstance(self.algorithm, Auto):
            if None not in (self.stop.improvement, self.stop.expected_improvement):
                raise ValueError("stop.improvement is for gp_ucb, stop.expected_improvement for ei: give one of them")
            return self
        if self.batch_size > 1 and not isinstance(self.algorithm, BATCHED):
            other = "gp_bucb" if name == "gp_ucb" else "gp_bucb, ei, ldp_moma, igp_ucb, thompson or random"
            raise ValueError(f"{name} asks one row at a time: for a batch_size above 1 choose {other}, or auto")
        if self.repeats not in ("auto", "algorithm") and isinstance(self.algorithm, LdpMoma | Moma):
            raise ValueError(f"{name} plays each row several times: repeats must be auto or algorithm")
        if self.stop.improvement is not None:
            if not isinstance(self.algorithm, GpUcb | GpBucb):
                raise ValueError(f"stop.improvement is for gp_ucb and gp_bucb, not for {name}")
            if isinstance(self.algorithm, GpUcb) and self.algorithm.nugget == "out":
                raise ValueError("stop.improvement needs a theorem: there is none for gp_ucb with nugget out")
        if self.stop.expected_improvement is not None and not isinstance(self.algorithm, IMPROVING):
            raise ValueError(f"stop.expected_improvement is for ei and ei_deblurred, not for {name}")
        if self.stop.target_by == "mean" and isinstance(self.algorithm, RandomRows):
            raise ValueError("stop.target_by must be observed for random, which estimates nothing")
        if isinstance(self.fit, Fit) and not isinstance(self.algorithm, FITTED):
            raise ValueError(f'{name} takes fixed hyper-parameters: leave out fit, or send fit: "auto"')
        return self


class RunCreate(RunSpec):
    """One optimization against one study of a curator."""

    token: GrantToken = Field(description="Token of the grant: stored encrypted, never shown again.")
    observations: list[Observation] = Field(
        [],
        max_length=OBSERVATIONS_MAX,
        description="Past measurements to start with. The curator never sees them.",
    )
    hold: bool = Field(
        False, description="true: create the run paused, so that observations can be imported; resume starts it."
    )


class TokenReplacement(Request):
    """Another token of the same grant, for a run that outlives its first token."""

    token: GrantToken = Field(description="New token of the grant: stored encrypted, never shown again.")


RunState = Literal["queued", "running", "paused", "waiting", "completed", "failed", "stopped"]


EndedBecause = Literal["budget", "exhausted", "target", "improvement", "refused", "stopped", "failed"]


class Best(Reply):
    """The best outcome of a run."""

    trial: int = Field(description="Number of the trial, from 1.")
    row: int = Field(description="Number of the candidate: its row of Z.")
    y: float = Field(description="The outcome, in units of the measurement.")


class RunProblem(Reply):
    """Why a run failed."""

    code: str = Field(description="Stable error code, for programs.")
    detail: str = Field(description="What is wrong, for people.")


class RunEngine(Reply):
    """What the candidates of a run are computed with. It changes time and memory, and no choice."""

    name: Literal["process", "threads", "dask"] = Field(
        description="process: as one part; threads: in parts, side by side; dask: in parts at workers of a cluster."
    )
    parts: int = Field(description="Parts that the candidates are divided into.")
    workers: int = Field(description="Threads, or workers of the cluster, that work on them at once.")
    memory_bytes: int = Field(description="Most memory that the run may need in all, estimated at its start.")


class RunView(Reply):
    """A run and its progress."""

    id: str = Field(description="run_...")
    name: str = Field(description="Name, for people.")
    state: RunState = Field(
        description=(
            "queued, running; paused until it is resumed; waiting for people who measure, or for a curator that does "
            "not answer, after which it continues by itself; completed, failed or stopped: final."
        )
    )
    waiting_for: Literal["curator", "people", "engine"] | None = Field(
        None,
        description=(
            "What a waiting run waits for. people: a person or a laboratory measures; curator: the curator does not "
            "answer, or refuses temporarily; engine: the workers that candidates are computed on. Null in other states."
        ),
    )
    waiting_since: datetime | None = Field(
        None, description="Since when a waiting run waits; for people: when the curator accepted the query."
    )
    open_measurements: int = Field(0, description="Number of queried candidates that are not measured yet.")
    curator_url: str = Field(description="Address of the curator.")
    study_id: str = Field(description="The study at the curator.")
    algorithm: AlgorithmChoice = Field(description="Algorithm given with the run; auto: that of the plan.")
    plan: Plan | None = Field(
        None, description="How candidates are chosen, and why; null before the first contact with the curator."
    )
    iterations: int = Field(description="T: number of queries after the initial ones.")
    initial_rows: int | None = Field(
        description="Size of the initial design given with the run; null: that of the plan."
    )
    seed: int = Field(description="Decides initial rows and ties.")
    continue_from: str | None = Field(None, description="The run whose answers this one began with.")
    archived_at: datetime | None = Field(None, description="When it was archived; null: it is not.")
    note: str | None = Field(None, description="Note of a vendor, for people.")
    tags: list[str] = Field([], description="Tags, in order.")
    batch_size: int = Field(1, description="Candidates in one query.")
    repeats: Repeats = "algorithm"
    initial_design: InitialDesign | None = Field(
        "random", description="How the initial candidates are chosen, as given with the run; null: as the plan says."
    )
    stop: StopRules = Field(StopRules(), description="Rules that end the run early.")
    observations: int = Field(0, description="Number of past measurements that it started with.")
    kernel: Kernel | None = Field(description="Kernel given with the run; null: that of the study.")
    fit: Fit | Literal["auto"] | None = Field(
        None, description="Fit settings given with the run; auto: as the plan says; null: hyper-parameters are fixed."
    )
    fitted: Fitted | None = Field(None, description="The last fit; null before the first.")
    study: StudyView | None = Field(
        description="The study, as the curator describes it; null before the first contact."
    )
    trials: int = Field(description="Number of trials answered so far.")
    declined: int = Field(
        0,
        description=(
            "Number of declined trials: they count against the budget, and their candidates are not queried again."
        ),
    )
    engine: RunEngine | None = Field(
        None, description="What its candidates were last computed with; null before the first contact."
    )
    best: Best | None = Field(
        description="Best outcome; null before the first answer, and where answers are randomized: see recommendation."
    )
    recommendation: Recommendation | None = Field(
        None, description="Stored when the run has completed; GET .../recommendation returns it at any time."
    )
    created_at: datetime = Field(description="When it was queued.")
    started_at: datetime | None = Field(description="When it first started.")
    heartbeat_at: datetime | None = Field(description="When it last made progress; null before the first step.")
    waits_until: datetime | None = Field(description="When a waiting run retries; null in other states.")
    ended_at: datetime | None = Field(description="When it ended; null before.")
    ended_because: EndedBecause | None = Field(
        description=(
            "budget: all queries were answered or declined; exhausted: no candidate remains; target: it was reached; "
            "improvement: no candidate can improve, or is expected to, by more than the run's rule requires."
        )
    )
    can_resume: bool = Field(
        False, description="Whether it can be resumed: it is paused, waits, or failed because no curator was reached."
    )
    problem: RunProblem | None = Field(description="Why it failed, was refused, or waits; otherwise null.")
    warnings: list[str] = Field(
        [],
        description=(
            "Warnings in words: about the chosen algorithm for this study, and its model after the answers so far."
        ),
    )


class RunCounts(Reply):
    """Number of runs in each state."""

    queued: int = Field(0, description="Not started yet.")
    running: int = Field(0, description="In progress.")
    paused: int = Field(0, description="Halted until resumed.")
    waiting_for_people: int = Field(0, description="Waiting for people or a laboratory to measure.")
    waiting_for_curator: int = Field(0, description="Waiting for a curator that does not answer.")
    waiting_for_engine: int = Field(0, description="Waiting for the workers that candidates are computed on.")
    completed: int = Field(0, description="Ended normally.")
    failed: int = Field(0, description="Ended by an error.")
    stopped: int = Field(0, description="Stopped by a user.")


class RunPage(Page):
    """A page of runs."""

    counts: RunCounts = Field(
        description="Number of all runs in each state that are not archived, not only on this page."
    )

    runs: list[RunView] = Field(description="Runs, in the order of creation.")
    tags: list[str] = Field([], description="Tags of all runs that are not archived.")


class TrialView(Reply):
    """A trial: a chosen candidate with its answer. Moments are those of the choice, in units of the measurement."""

    number: int = Field(description="Number of the trial, from 1.")
    phase: Literal["initial", "algorithm"] = Field(
        description="initial: part of the initial design; algorithm: chosen by the algorithm."
    )
    query: int = Field(description="Number of the first trial that was chosen together with it.")
    row: int = Field(description="Number of the candidate: its row of Z.")
    mean: float | None = Field(description="Posterior mean at the candidate; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random candidate.")
    acquisition: float | None = Field(
        description=(
            "Value of the acquisition function, in the direction of maximization; for ei the logarithm of the expected "
            "improvement."
        )
    )
    ties: int = Field(description="Number of candidates that shared the maximum; one was drawn with the run's seed.")
    fitted: Fitted | None = Field(
        None, description="Hyper-parameters fitted just before this choice; null: unchanged since the previous trial."
    )
    chosen_at: datetime = Field(description="When the candidate was chosen.")
    asked_at: datetime | None = Field(
        None, description="When the curator accepted the query for measurement; null if it answered at once."
    )
    answered_at: datetime | None = Field(description="When the curator answered or declined; null before.")
    query_id: str | None = Field(description="The query at the curator; null until the curator accepted it.")
    y: float | None = Field(description="The latest outcome; null before the first one, and if it is declined.")
    declined: bool = Field(
        False,
        description="Whether it has no answer: it was declined, unless a late one arrives, or a cap allowed none.",
    )
    version: int | None = Field(
        None, description="Latest version of the query's answer; more than 1: it was corrected."
    )
    plays: int | None = Field(description="Number of measurements of which y is the mean; null if there is no y.")
    passport: NoisePassport | None = Field(description="Noise description of y; null if there is no y.")


class TrialPage(Page):
    """A page of trials."""

    trials: list[TrialView] = Field(description="Trials, in the order of their numbers or as sorted.")
    total: int | None = Field(None, description="Number of trials that match; null unless the request has an offset.")


class CurvePoint(Reply):
    """A trial of a run, for a chart. Moments as in TrialView."""

    number: int = Field(description="Number of the trial.")
    y: float | None = Field(description="The outcome; null before it is known, and if it is declined.")
    best: float | None = Field(
        description="Best y up to this trial; null before the first, and where answers are randomized."
    )
    mean: float | None = Field(description="Posterior mean at the candidate; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random candidate.")


class RunCurve(Reply):
    """The course of a run, thinned for a chart."""

    trials: int = Field(description="Number of trials.")
    points: list[CurvePoint] = Field(description="Evenly spaced trials, including the first and the last.")


class AnswerVersion(Reply):
    """A version of a trial's answer that the run received: queries answered by people may have several."""

    number: int = Field(description="Number of the trial.")
    version: int = Field(ge=1, description="Version of the query's answer.")
    after: int = Field(description="Number of trials chosen before it arrived: it counts for the choices after them.")
    at: datetime = Field(description="When it arrived.")
    y: float | None = Field(description="The outcome; null: declined.")
    plays: int | None = Field(description="Number of measurements of which y is the mean.")
    passport: NoisePassport | None = Field(description="Noise description of y.")


class RunExport(Reply):
    """Everything needed to replay a run, given the release."""

    run: RunView = Field(description="The run.")
    trials: list[TrialView] = Field(description="All trials, in order.")
    observations: list[Observation] = Field([], description="Past measurements that it started with, in order.")
    versions: list[AnswerVersion] = Field(
        [], description="Answer versions, in the order of arrival, of a study whose y is measured on request."
    )
