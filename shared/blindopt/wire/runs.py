"""Optimizations at the modeler."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from blindopt.wire.bandits import (
    Ata,
    BoundedIgp,
    IgpUcb,
    LaplaceAdf,
    LdpAta,
    LdpMoma,
    LdpTgp,
    Moma,
    Tgp,
    TgpTight,
    Thompson,
)
from blindopt.wire.base import Name, Page, PositiveFloat, Reply, Request, Seed
from blindopt.wire.fits import Fit, Fitted
from blindopt.wire.queries import NoisePassport
from blindopt.wire.studies import Kernel, StudyView

Precision = Literal["double", "single"]
PRECISION = (
    "Of what is kept about each candidate. single takes half of the memory, for a million candidates and more, and "
    "chooses the same rows: those within its rounding of the largest bound are computed once more in double precision."
)


class GpUcb(Request):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"] = Field(description="Names the algorithm.")
    delta_ucb: float = Field(0.05, ge=1e-50, lt=1, description="Theorem 3; delta' is half of it.")
    noise_aware: bool = Field(
        True, description="Average the kernel over the release's noise, where its law is known; else take Z for X."
    )
    scale: PositiveFloat = Field(1.0, description="Factor of beta_t; 1 is the theorem, less explores less.")
    precision: Precision = Field("double", description=PRECISION)


class GpBucb(Request):
    """GP-BUCB, Desautels et al. (2014): GP-UCB in batches, with hallucinated outcomes of what is pending."""

    name: Literal["gp_bucb"] = Field(description="Names the algorithm.")
    delta_ucb: float = Field(0.05, ge=1e-50, lt=1, description="As for gp_ucb: delta' is half of it.")
    noise_aware: bool = Field(
        True, description="Average the kernel over the release's noise, where its law is known; else take Z for X."
    )
    scale: PositiveFloat = Field(1.0, description="Factor of beta_t; 1 is the theorem, less explores less.")
    precision: Precision = Field("double", description=PRECISION)


class RandomRows(Request):
    """Uniform random rows without repetition: the yardstick that learns nothing."""

    name: Literal["random"] = Field(description="Names the algorithm.")


AlgorithmSpec = Annotated[
    GpUcb
    | GpBucb
    | RandomRows
    | LdpAta
    | LdpTgp
    | TgpTight
    | LdpMoma
    | Ata
    | Tgp
    | Moma
    | LaplaceAdf
    | BoundedIgp
    | IgpUcb
    | Thompson,
    Field(discriminator="name"),
]


FITTED = (GpUcb, GpBucb)
"""Algorithms whose hyper-parameters can be fitted."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
        labels = (parts.hostname or "").rstrip(".").split(".")
        named = all(0 < len(label) < 64 for label in labels) and len(parts.hostname or "") < 254
        good = plain and named and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError("must be an address such as https://curator.example or http://127.0.0.1:8410")
    return url


CuratorUrl = Annotated[
    str,
    Field(max_length=2_000, pattern=r"^https?://[!-~]+$"),
    AfterValidator(_address),
]


Outcome = Annotated[float, Field(ge=-1e150, le=1e150)]


class StopRules(Request):
    """When a run ends before its budget does. Looked at before each query."""

    target: Outcome | None = Field(
        None, description="Stop when the run has reached this y or a better one; null: no target."
    )
    target_by: Literal["observed", "mean"] = Field(
        "observed",
        description=(
            "observed: some y reaches the target; mean: the largest posterior mean of the rows asked does, for noisy y."
        ),
    )
    improvement: PositiveFloat | None = Field(
        None,
        description=(
            "Stop when no row that may be asked can beat the best row asked by more than this, in units of y, with "
            "probability 1 - delta_ucb: the largest upper bound minus the largest lower bound of the rows asked. For "
            "gp_ucb and gp_bucb; null: never."
        ),
    )


class Observation(Request):
    """A past measurement that a run begins with."""

    row: int = Field(ge=0, lt=2**53, description="Row of Z, from 0.")
    y: Outcome = Field(description="Its outcome, in units of the measurement.")
    noise_variance: Annotated[float, Field(ge=0, le=1e100)] | None = Field(
        None, description="Of y, where it is more than the kernel's; null: the kernel's. For gp_ucb and gp_bucb."
    )


class RunSpec(Request):
    """One optimization against one study of a curator, as it is stored: without its secret."""

    name: Name = Field("run", description="For people.")
    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")] = Field(description="The study to optimize.")
    algorithm: AlgorithmSpec = Field(GpUcb(name="gp_ucb"), description="How rows are chosen.")
    iterations: int = Field(50, ge=1, le=100_000, description="T: queries after the initial ones.")
    initial_rows: int = Field(1, ge=0, le=10_000, description="Rows of the initial design, asked first.")
    seed: Seed = Field(0, description="Decides initial rows and ties: the same seed makes the same choices.")
    batch_size: int = Field(
        1, ge=1, le=100, description="Rows asked together, in one query; more than one for gp_bucb and random."
    )
    repeats: Literal["algorithm", "never", "after_all"] = Field(
        "algorithm",
        description=(
            "Whether a row may be asked again. algorithm: as the algorithm will; never: the run ends when all were "
            "asked; after_all: once all were. Imported rows count as asked."
        ),
    )
    initial_design: Literal["random", "maximin"] = Field(
        "random",
        description="random: uniform random rows; maximin: a random one, then each time the row farthest from those.",
    )
    stop: StopRules = Field(StopRules(), description="When to end before the budget does.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters, or null: those of the study.")
    fit: Fit | None = Field(
        None,
        description=(
            "Fit hyper-parameters to the answers, from the kernel on; without a kernel a squared-exponential one of "
            "the candidates' size is taken. Null: they stay as they are told. For gp_ucb and gp_bucb."
        ),
    )
    log_key: str | None = Field(
        None,
        max_length=400,
        description="The curator's C2SP verifier key, learnt another way; null: the first that is seen is kept.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        name, plain = self.algorithm.name, isinstance(self.algorithm, GpUcb | GpBucb)
        if self.batch_size > 1 and not isinstance(self.algorithm, GpBucb | RandomRows):
            other = "gp_bucb" if name == "gp_ucb" else "gp_bucb or random"
            raise ValueError(f"{name} asks one row at a time: for a batch_size above 1 choose {other}")
        if self.repeats != "algorithm" and isinstance(self.algorithm, LdpMoma | Moma):
            raise ValueError(f"{name} plays each row several times: repeats must be algorithm")
        if self.stop.improvement is not None and not plain:
            raise ValueError(f"stop.improvement is for gp_ucb and gp_bucb, not for {name}")
        if self.stop.target_by == "mean" and isinstance(self.algorithm, RandomRows):
            raise ValueError("stop.target_by must be observed for random, which estimates nothing")
        if self.fit is not None and not isinstance(self.algorithm, FITTED):
            raise ValueError(f"{self.algorithm.name} takes hyper-parameters as they are told: leave out fit")
        return self


OBSERVATIONS_MAX = 10_000


class RunCreate(RunSpec):
    """One optimization against one study of a curator."""

    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's token: stored sealed, never shown again."
    )
    observations: list[Observation] = Field(
        [],
        max_length=OBSERVATIONS_MAX,
        description="Past measurements that it begins with. The curator never sees them.",
    )
    hold: bool = Field(
        False, description="True: created paused, so that observations can be imported; resume starts it."
    )


class ObservationImport(Request):
    """Past measurements for a run that was not started."""

    observations: list[Observation] = Field(
        min_length=1, max_length=OBSERVATIONS_MAX, description="What it begins with, in this order."
    )


class ImportFault(Reply):
    """What is wrong with one line of an import."""

    line: int = Field(description="Of a CSV file, from 1 (the header); of a JSON list the place, from 1.")
    field: str = Field(description="row, y, noise_variance, or line.")
    message: str = Field(description="What is wrong.")


class ImportReport(Reply):
    """What an import did, or what a dry run found."""

    dry_run: bool = Field(description="True: nothing was stored.")
    observations: int = Field(description="How many can be taken; all of them were, if this is no dry run.")
    rows: int = Field(description="How many different rows they are of: a row may have several.")
    total: int = Field(description="How many the run has now, or would have.")
    faults: list[ImportFault] = Field(description="The first 1,000, by line. Nothing is stored where there is one.")


class TokenReplacement(Request):
    """Another token of the same grant, for a run that outlives its first."""

    token: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)] = Field(
        description="The grant's newer token: stored sealed, never shown again."
    )


RunState = Literal["queued", "running", "paused", "waiting", "completed", "failed", "stopped"]


EndedBecause = Literal["budget", "exhausted", "target", "improvement", "refused", "stopped", "failed"]


class Recommendation(Reply):
    """The row to take, by all that is known, and how sure that is. In units of the measurement."""

    row: int = Field(description="Row of Z.")
    over: Literal["asked", "all"] = Field(description="Whether it is the best of the rows asked, or of all.")
    by: Literal["posterior", "estimate", "observed"] = Field(
        description=(
            "posterior: largest posterior mean (smallest where y is minimized); estimate: that of an algorithm over "
            "few arms; observed: best mean of the answers to a row, where nothing is estimated."
        )
    )
    mean: float = Field(description="Of f at the row.")
    sd: float | None = Field(description="Of f at the row, without the noise of an answer; null: not known.")
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        description="mean - 1.96 sd, mean + 1.96 sd: 95 % where the model holds."
    )
    outcomes: int = Field(description="How many answers and past measurements it rests on.")


class Best(Reply):
    """The best outcome that a run has seen."""

    trial: int = Field(description="Number of the trial, from 1.")
    row: int = Field(description="Row of Z.")
    y: float = Field(description="Its outcome, in units of the measurement.")


class RunProblem(Reply):
    """Why a run failed."""

    code: str = Field(description="Stable name, for programs.")
    detail: str = Field(description="For people.")


class RunView(Reply):
    """A run and how far it is."""

    id: str = Field(description="run_...")
    name: str = Field(description="For people.")
    state: RunState = Field(
        description=(
            "queued, running; paused until it is resumed; waiting for people who measure, or for a curator that does "
            "not answer, and then going on by itself; completed, failed or stopped for ever."
        )
    )
    waiting_for: Literal["curator", "people"] | None = Field(
        None,
        description=(
            "Of a waiting run. people: a person or a laboratory measures what it asked; curator: it does not answer, "
            "or refuses for now. Null in other states."
        ),
    )
    waiting_since: datetime | None = Field(
        None, description="Of a waiting run: since when; for people: when the curator took the query."
    )
    open_measurements: int = Field(0, description="Rows that it asked and that are still to be measured.")
    curator_url: str = Field(description="Address of the curator.")
    study_id: str = Field(description="The study at the curator.")
    algorithm: AlgorithmSpec = Field(description="How rows are chosen.")
    iterations: int = Field(description="T: queries after the initial ones.")
    initial_rows: int = Field(description="Rows of the initial design, asked first.")
    seed: int = Field(description="Decides initial rows and ties.")
    batch_size: int = Field(1, description="Rows asked together, in one query.")
    repeats: Literal["algorithm", "never", "after_all"] = Field(
        "algorithm", description="Whether rows are asked again."
    )
    initial_design: Literal["random", "maximin"] = Field("random", description="How the initial rows are chosen.")
    stop: StopRules = Field(StopRules(), description="When it ends before its budget does.")
    observations: int = Field(0, description="Past measurements that it began with.")
    kernel: Kernel | None = Field(description="Given with the run; null: that of the study.")
    fit: Fit | None = Field(None, description="Given with the run; null: hyper-parameters stay as they are told.")
    fitted: Fitted | None = Field(None, description="The last fit; null before the first.")
    study: StudyView | None = Field(description="What the curator told of the study; null until it was asked.")
    trials: int = Field(description="Answered so far.")
    declined: int = Field(
        0, description="Asked and not measured: they count as trials of the budget, and are not asked again."
    )
    best: Best | None = Field(description="Null before the first answer.")
    recommendation: Recommendation | None = Field(
        None, description="Stored when the run has completed; GET .../recommendation tells it at any time."
    )
    created_at: datetime = Field(description="When it was queued.")
    started_at: datetime | None = Field(description="When work on it first began.")
    heartbeat_at: datetime | None = Field(description="When it last made a step; null before the first.")
    waits_until: datetime | None = Field(description="When a waiting run tries again; null in other states.")
    ended_at: datetime | None = Field(description="Null until it has ended.")
    ended_because: EndedBecause | None = Field(
        description=(
            "budget: all queries were answered or declined; exhausted: no row is left; target: it was reached; "
            "improvement: no row can be better by what the run's rule says."
        )
    )
    problem: RunProblem | None = Field(description="Why it failed, was refused, or waits; else null.")
    warnings: list[str] = Field(
        [], description="What speaks against the chosen algorithm here, in words: told when the run begins."
    )


class RunCounts(Reply):
    """How many runs there are in a state, in all."""

    queued: int = Field(0, description="Not begun yet.")
    running: int = Field(0, description="Under way.")
    paused: int = Field(0, description="Halted until resumed.")
    waiting_for_people: int = Field(0, description="For answers that people or a laboratory measure.")
    waiting_for_curator: int = Field(0, description="For a curator that does not answer.")
    completed: int = Field(0, description="Ended well.")
    failed: int = Field(0, description="Ended by a problem.")
    stopped: int = Field(0, description="Ended by somebody.")


class RunPage(Page):
    """A page of runs."""

    counts: RunCounts = Field(description="How many runs are in each state: of all, not of this page.")

    runs: list[RunView] = Field(description="In the order of their creation.")


class TrialView(Reply):
    """One chosen row with its answer. Moments are in units of the measurement, at the time of the choice."""

    number: int = Field(description="From 1.")
    phase: Literal["initial", "algorithm"] = Field(description="Whether the row is of the initial design or chosen.")
    query: int = Field(description="Number of the first trial of the query that it was asked in.")
    row: int = Field(description="Row of Z.")
    mean: float | None = Field(description="Posterior mean of the row; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random row.")
    acquisition: float | None = Field(description="In the direction of maximization.")
    ties: int = Field(description="Rows that shared the maximum; one was drawn with the run's seed.")
    fitted: Fitted | None = Field(
        None, description="Hyper-parameters that were fitted before this choice; null: those of the trials before."
    )
    chosen_at: datetime = Field(description="When the row was chosen.")
    asked_at: datetime | None = Field(
        None, description="When the curator took the query, to be measured; null for one that it answered at once."
    )
    answered_at: datetime | None = Field(description="Null until the curator answered, or told that it is declined.")
    query_id: str | None = Field(description="The query at the curator; null until the curator took it.")
    y: float | None = Field(description="The outcome, as it was last told; null until then, and where it is declined.")
    declined: bool = Field(False, description="Nobody measured it: a trial without y, until there is a late answer.")
    version: int | None = Field(
        None, description="Of the query's answer, as it was last told; more than 1: it was corrected."
    )
    plays: int | None = Field(description="How many measurements y is the mean of; null where there is no y.")
    passport: NoisePassport | None = Field(description="What was done to y; null where there is no y.")


class TrialPage(Page):
    """A page of trials."""

    trials: list[TrialView] = Field(description="In the order of their numbers.")


class CurvePoint(Reply):
    """One trial of a run, for a chart. Moments as in TrialView."""

    number: int = Field(description="Of the trial.")
    y: float | None = Field(description="The outcome; null until then, and where it is declined.")
    best: float | None = Field(description="The best y of this trial and all before it; null before the first.")
    mean: float | None = Field(description="Posterior mean of the row; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random row.")


class RunCurve(Reply):
    """How a run went, in so many points that a chart can show them."""

    trials: int = Field(description="How many there are.")
    points: list[CurvePoint] = Field(description="Trials at even distances, the first and the last among them.")


class AnswerVersion(Reply):
    """What was once known of a trial: of queries that people answer, each version that the run took."""

    number: int = Field(description="Of the trial.")
    version: int = Field(ge=1, description="Of its query's answer.")
    after: int = Field(description="How many trials were chosen when it came: it counts for the choices after them.")
    at: datetime = Field(description="When it came.")
    y: float | None = Field(description="The outcome; null: declined.")
    plays: int | None = Field(description="How many measurements y is the mean of.")
    passport: NoisePassport | None = Field(description="What was done to y.")


class RunExport(Reply):
    """Everything needed to redo a run, given the release."""

    run: RunView = Field(description="The run.")
    trials: list[TrialView] = Field(description="All of them, in order.")
    observations: list[Observation] = Field([], description="Past measurements that it began with, in order.")
    versions: list[AnswerVersion] = Field(
        [], description="Of a study whose y is measured when it is asked: all that was told, in the order it came."
    )


class PosteriorPoint(Reply):
    """What is believed of f at one row, in units of the measurement."""

    row: int = Field(description="Row of Z.")
    mean: float = Field(description="Posterior mean of f.")
    sd: float = Field(description="Posterior standard deviation of f, without the noise of an answer.")


class PosteriorPage(Page):
    """Some rows of what is believed of f after the answers so far."""

    outcomes: int = Field(description="How many answers and past measurements it rests on: each page tells its own.")
    points: list[PosteriorPoint] = Field(description="By row; where the best are asked for, the best first.")


class MapPoint(Reply):
    """One row of Z on the map of its first two principal axes."""

    row: int = Field(description="Row of Z.")
    first: float = Field(description="Along the first principal axis, from the middle, in scaled units.")
    second: float = Field(description="Along the second; 0 where Z has one column.")
    mean: float | None = Field(description="Posterior mean of f; null where the algorithm estimates nothing.")
    sd: float | None = Field(description="Posterior standard deviation of f; null likewise.")
    asked: int = Field(ge=0, description="How many answers there are about the row.")


class PosteriorMap(Reply):
    """What is believed of f over the first two principal axes of Z."""

    outcomes: int = Field(description="How many answers and past measurements it rests on.")
    shares: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(
        description="Share of Z's variance along each axis: what is seen of it."
    )
    rows: int = Field(description="Rows of Z; of more than there are points, every so-manieth is shown.")
    points: list[MapPoint] = Field(description="All rows that were asked, and others spread evenly; by row.")
