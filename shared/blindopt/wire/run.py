"""Runs at a modeler: connections, algorithms, plans, trials, posteriors."""

from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from blindopt import display
from blindopt.wire.base import Name, Page, PositiveFloat, Reply, Request, Seed
from blindopt.wire.goal import BEST, FindMany, Goal, GoodCandidates
from blindopt.wire.message import GoodRow, MeanInterval, RecommendationMessage, RecommendationsMessage
from blindopt.wire.query import NoisePassport
from blindopt.wire.study import GrantReply, Kernel, StudyView

TheoremDelta = Annotated[float, Field(gt=0, lt=1, description="Largest failure probability of the theorem.")]
Accuracy = Annotated[float, Field(gt=0, lt=1, description="Accuracy of the finite features; the paper's epsilon.")]
TheoryConstants = Annotated[
    bool,
    Field(
        description="true: the theorem's constants, scale 1 and lam 1; false: scaled constants, which work in practice."
    ),
]
RkhsBound = Annotated[
    PositiveFloat | None,
    Field(
        description=(
            "Bound of the RKHS norm of f - centre under the kernel of unit size, in units of the outcome; null: 1.5 "
            "times the value bound."
        )
    ),
]
Scale = Annotated[
    PositiveFloat | None,
    Field(description="Factor of the exploration weight; null: the value of the chosen constants."),
]
Regulariser = Annotated[
    PositiveFloat | None,
    Field(description="lam, in squared units of the outcome; null: the value of the chosen constants."),
]
PinnedKey = Annotated[
    str | None,
    Field(
        max_length=400,
        description="The curator's C2SP verifier key, obtained separately; null: trust and pin the first one.",
    ),
]


class FewArmsSpec(Request):
    """Fields of all algorithms for few arms: at most 2,000 candidates, which may be queried again."""

    nugget: float = Field(0.0, ge=0, le=10)
    """Added to the diagonal of the kernel of unit size: 0.01 to 1 for kernels estimated from data."""


class PaperSpec(FewArmsSpec):
    """Fields of the three algorithms of Zhou & Tan (2021)."""

    theory: TheoryConstants = False
    scale: Scale = None
    lam: Regulariser = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class LdpAta(PaperSpec):
    """ATA-GP-UCB on Laplace answers, Algorithm 1 of Zhou & Tan (2021)."""

    name: Literal["ldp_ata"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5


class LdpTgp(PaperSpec):
    """TGP-UCB on Laplace answers, Algorithm 2 of Zhou & Tan (2021)."""

    name: Literal["ldp_tgp"] = Field(description="Name of the algorithm.")


class TgpTight(FewArmsSpec):
    """TGP-UCB on Laplace answers with the smaller constants that its proof allows: a theorem at scale 1."""

    name: Literal["tgp_tight"] = Field(description="Name of the algorithm.")
    scale: PositiveFloat = Field(1.0, description="Factor of the exploration weight; 1 is the theorem.")
    lam: Annotated[
        PositiveFloat | None,
        Field(description="In squared units of the outcome; null: the noise variance of a reward."),
    ] = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class LdpMoma(PaperSpec):
    """MoMA-GP-UCB on Laplace answers, Algorithm 3 of Zhou & Tan (2021). Ignores initial rows."""

    name: Literal["ldp_moma"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5
    plays: int | None = Field(None, ge=1, le=10_000)
    """k: rounds of an epoch; null: 5, or the theorem's value with theory."""


class HeavyTails(PaperSpec):
    """Fields of the variants without privacy noise: rewards f(x) + eta with few moments, about the kernel's mean."""

    alpha: float = Field(1.0, gt=0, le=1, description="Moments of order 1 + alpha are finite.")
    value_bound: PositiveFloat = Field(description="B: f lies within B of the centre, in units of the outcome.")
    noise_moment: PositiveFloat = Field(description="c: E|eta|^(1 + alpha) is at most c.")
    raw_moment: Annotated[
        PositiveFloat | None,
        Field(
            description=(
                "v: E|y - centre|^(1 + alpha) is at most v; null: from B and c, B^2 + c at alpha = 1 and "
                "2^alpha (B^(1 + alpha) + c) below."
            )
        ),
    ] = None


class Ata(HeavyTails):
    """ATA-GP-UCB for heavy tails without privacy noise: section 3 of Zhou & Tan (2021) for general alpha."""

    name: Literal["ata"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5


class Tgp(HeavyTails):
    """TGP-UCB for heavy tails without privacy noise."""

    name: Literal["tgp"] = Field(description="Name of the algorithm.")


class Moma(HeavyTails):
    """MoMA-GP-UCB for heavy tails without privacy noise. Ignores initial rows."""

    name: Literal["moma"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5
    plays: int | None = Field(None, ge=1, le=10_000)
    """k: rounds of an epoch; null: 5, or the theorem's value with theory."""


class LaplaceAdf(FewArmsSpec):
    """UCB with the exact likelihood of Laplace answers, by assumed-density filtering. No theorem."""

    name: Literal["laplace_adf"] = Field(description="Name of the algorithm.")
    beta: PositiveFloat = Field(2.0, description="Standard deviations above the mean.")


class BoundedIgp(FewArmsSpec):
    """IGP-UCB on one_bit or piecewise answers."""

    name: Literal["bounded_igp"] = Field(description="Name of the algorithm.")
    mode: Literal["practical", "guaranteed"] = "practical"
    """guaranteed: the sup norm of the answers as noise, scale 1, a theorem; practical: their variance."""
    scale: Scale = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class IgpUcb(PaperSpec):
    """IGP-UCB of Chowdhury & Gopalan (2017) on any answers. A theorem for sub-Gaussian noise alone."""

    name: Literal["igp_ucb"] = Field(description="Name of the algorithm.")


class Thompson(FewArmsSpec):
    """Thompson sampling on any answers. No theorem."""

    name: Literal["thompson"] = Field(description="Name of the algorithm.")
    scale: PositiveFloat = Field(0.5, description="Factor of the posterior standard deviation in the draws.")


FewArms = LdpAta | LdpTgp | TgpTight | LdpMoma | Ata | Tgp | Moma | LaplaceAdf | BoundedIgp | IgpUcb | Thompson


Parameter = Literal["lengthscale", "signal_variance", "noise_variance"]


class Interval(Request):
    """Bounds of a parameter; equal bounds fix it."""

    lower: PositiveFloat = Field(description="Smallest value.")
    upper: PositiveFloat = Field(description="Largest value.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lower <= self.upper:
            raise ValueError("lower must not be larger than upper")
        return self


class LogNormal(Request):
    """A prior: the natural logarithm of the parameter is normal."""

    median: PositiveFloat = Field(description="Median of the parameter, in its units.")
    spread: float = Field(ge=1e-3, le=100, description="Standard deviation of the logarithm.")


class FitBounds(Request):
    """Bounds of the fitted parameters. Null: a range around what candidates and answers suggest."""

    lengthscale: Interval | None = None
    """Null: up to 20 times the candidates' typical distance, and at least 1/100 of it and a quarter of the median
    distance of a queried candidate to the nearest other one (not where priors are given)."""
    signal_variance: Interval | None = Field(None, description="Null: 1/1000 to 1000 times the answers' variance.")
    noise_variance: Interval | None = Field(None, description="Null: 1e-8 to 1 times the answers' variance.")


class FitPriors(Request):
    """Priors of the fitted parameters. Null: a flat prior on the logarithm."""

    lengthscale: LogNormal | None = Field(None, description="Prior of the length-scale, in scaled units.")
    signal_variance: LogNormal | None = None
    """Prior of the signal variance, in squared units of the outcome."""
    noise_variance: LogNormal | None = None
    """Prior of the noise variance, in squared units of the outcome."""


class Fit(Request):
    """Fit hyper-parameters by marginal likelihood, after the initial rows and again as answers come in.

    Noise that an answer's noise description declares is not fitted, only the noise of other answers. Where answers are
    exact values of a column, the variance fitted in its place is that of the part of a value that is a record's own.
    """

    every: int = Field(10, ge=1, le=100_000)
    """Largest number of answers between two fits: one comes after each quarter more answers (in runs before version
    0.3.0 after exactly so many)."""
    starts: int = Field(3, ge=1, le=64, description="Number of starting points of the search.")
    mean: Literal["fitted", "kernel"] = "fitted"
    """fitted: the most likely constant mean; kernel: the kernel's mean, or 0."""
    bounds: FitBounds = Field(FitBounds(), description="Bounds of the parameters.")
    priors: FitPriors | None = None
    """Null: weak priors. The median of the length-scale is 0.4 of the candidates' typical distance (spread 1). Where
    coordinates have their own, that is the prior of their geometric mean, and each varies about it (spread 0.5; in runs
    before version 0.3.0 each varied by itself, with spread 1). The medians of the variances are those of the kernel
    (spread 1). Without a kernel, the signal variance is near that of the answers (spread 2), and the noise variance
    near 1/100 of the signal's (spread 1 below, 3 above). An empty object: no priors."""
    ard: Literal["auto", "off"] = "auto"
    """auto: candidates without noise are divided by the standard deviation of each column, and each of 2 to 100 columns
    has its own length-scale; off: all share one, in units of the release."""


class FitCheck(Reply):
    """How well the fitted model predicts each answer from the others (leave-one-out)."""

    log_density: float = Field(description="Mean log predictive density of an answer in nats, in units of the outcome.")
    baseline: float
    """The same for a model without candidates: mean and variance of the other answers. Larger is better."""
    largest_residual: float
    """Largest distance of an answer from its prediction, in standard deviations of the prediction."""
    row: int = Field(description="Candidate of that answer.")


class Fitted(Reply):
    """Hyper-parameters of a fit, used for the choices after it."""

    answers: int = Field(ge=0, description="Number of answers that were fitted.")
    lengthscale: float
    """Length-scale, in scaled units; the geometric mean if coordinates have their own."""
    lengthscales: list[float] | None = None
    """Length-scale of each coordinate: a short one means that the outcome depends on it. Null: all are the same."""
    signal_variance: float | None
    """Signal variance, in squared units of the outcome; null: too large or small to be a number."""
    noise_variance: float | None
    """Noise variance of an answer whose noise description declares none, in squared units of the outcome; where answers
    are exact values, variance of the part of a value that is the record's own. Null: too large or small to be a
    number."""
    signal_sd: float | None = None
    """Square root of the signal variance; null: fitted before version 0.3.0."""
    noise_sd: float | None = None
    """Square root of the noise variance; null: fitted before version 0.3.0."""
    mean: float = Field(description="Prior mean, in units of the outcome.")
    log_likelihood: float | None = Field(description="Log marginal likelihood in nats; null if the fit failed.")
    at_bounds: list[Parameter] = Field(description="Parameters that lie at a bound.")
    problem: str | None = Field(description="Why the fit failed and earlier values were kept; null if it succeeded.")
    check: FitCheck | None = Field(None, description="Check of the fit; null if the fit failed.")
    reason: str | None = None
    """Why hyper-parameters are fitted although a kernel was given; null if the run requests it."""


Precision = Literal["double", "single"]
NoiseAware = Annotated[
    bool, Field(description="Average the kernel over the release's noise, if its law is known; otherwise use Z as X.")
]


class GpRule(Request):
    """Fields of all algorithms over the posterior of a Gaussian process at the candidates."""

    name: str
    precision: Precision = "double"
    """Precision of the numbers stored for each candidate. single takes half the memory, for a million candidates or
    more, and chooses the same rows: bounds within its rounding error of the largest are recomputed in double
    precision."""


class GpAlgorithm(GpRule):
    """Fields of GP-UCB and of GP-BUCB."""

    delta_ucb: float = Field(0.05, ge=1e-50, lt=1, description="Theorem 3; delta' is half of it.")
    noise_aware: NoiseAware = True
    scale: PositiveFloat = Field(1.0, description="Factor of beta_t; 1 is the theorem's, smaller factors explore less.")


class GpUcb(GpAlgorithm):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"] = Field(description="Name of the algorithm.")
    nugget: Literal["in", "out"] = "in"
    """Whether the bound counts the variance that a candidate has for itself (the nugget: what the release's noise hides
    of it). in: as in the article; out: no, so that only what can be learned is explored. out has no theorem."""


class GpBucb(GpAlgorithm):
    """GP-BUCB, Desautels et al. (2014): GP-UCB in batches, with hallucinated outcomes of pending queries."""

    name: Literal["gp_bucb"] = Field(description="Name of the algorithm.")


class Ei(GpRule):
    """Expected improvement, where the variance that can be learned counts as optimism, and the nugget as luck."""

    name: Literal["ei"] = Field(description="Name of the algorithm.")
    noise_aware: NoiseAware = True
    optimism: float = Field(2.0, ge=0, le=1e6)
    """Number of learnable standard deviations added to the mean; 0: plain expected improvement."""


class EiDeblurred(GpRule):
    """Expected improvement of f itself, averaged over the places that the noisy coordinates of Z may stand for."""

    name: Literal["ei_deblurred"]
    """Name of the algorithm. It needs a release with Gaussian or Laplace noise."""
    explored: float = Field(0.5, ge=0, le=1)
    """Share of its steps, the first ones, that explore by an upper confidence bound."""


class Reach(GpRule):
    """The candidate that most surely is good, where a run looks for as many good ones as possible (see the goal)."""

    name: Literal["reach"] = Field(description="Name of the algorithm.")
    noise_aware: NoiseAware = True
    optimism: float = Field(2.0, ge=0, le=1e6)
    """Number of learnable standard deviations added to the mean; 0: none."""


class RandomRows(Request):
    """Uniform random candidates without repetition: a baseline."""

    name: Literal["random"] = Field(description="Name of the algorithm.")


Outcome = Annotated[float, Field(ge=-1e150, le=1e150)]
OBSERVATIONS_MAX = 10_000


class Observation(Request):
    """A past measurement that a run begins with."""

    row: int = Field(ge=0, lt=2**53, description="Number of the candidate, from 0.")
    y: Outcome = Field(description="The outcome, in units of the measurement.")
    noise_variance: Annotated[float, Field(ge=0, le=1e100)] | None = None
    """Noise variance of the answer, used if it is larger than the kernel's; null: the kernel's. For gp_ucb, gp_bucb, ei
    and ei_deblurred."""
    passport: NoisePassport | None = None
    """Noise description of an answer of the study, as the curator sent it; excludes noise_variance."""

    @model_validator(mode="after")
    def _single_noise(self) -> Self:
        if self.noise_variance is not None and self.passport is not None:
            raise ValueError("give noise_variance or passport, not both: the passport states the noise")
        return self


class ObservationImport(Request):
    """Past measurements for a run that has not started."""

    observations: list[Observation] = Field(min_length=1, max_length=OBSERVATIONS_MAX)
    """Measurements, in this order."""


class ImportFault(Reply):
    """A fault in a line of an import."""

    line: int = Field(description="Line of a CSV file, from 1 (the header); position in a JSON list, from 1.")
    field: str = Field(description="row, y, noise_variance, or line.")
    message: str = Field(description="What is wrong.")


class ImportReport(Reply):
    """Result of an import or of its dry run."""

    dry_run: bool = Field(description="Whether this was a dry run: nothing was stored.")
    observations: int
    """Number of measurements that can be imported; all of them were, unless this was a dry run."""
    rows: int = Field(description="Number of different candidates among them: one may have several.")
    total: int = Field(description="Number of measurements that the run has now, or would have.")
    faults: list[ImportFault]
    """The first 1,000 faults, by line. If there is one, nothing is stored."""


PlannedRepeats = Literal["algorithm", "never", "after_all"]
Repeats = Annotated[
    Literal["auto"] | PlannedRepeats,
    Field(
        description=(
            "Whether a candidate may be queried again. algorithm: as the algorithm chooses; never: the run ends when "
            "all were queried; after_all: once all were; auto: only where a repeat teaches something, as the plan "
            "says. Imported candidates count as queried."
        )
    ),
]
InitialDesign = Literal["random", "maximin", "mixed"]
InitialRows = Annotated[
    int | None,
    Field(
        ge=0,
        le=10_000,
        description="Number of candidates of the initial design, queried first. Null: 5, less the past measurements; "
        "at most as many as are queried after them.",
    ),
]
InitialDesignChoice = Annotated[
    InitialDesign | None,
    Field(
        description=(
            "How the initial candidates are chosen. random: uniformly; maximin: a random one, then repeatedly the one "
            "farthest from those chosen; mixed: half of them as maximin, the others random; null: maximin, mixed for "
            "candidates with declared noise, and random where the algorithm is random."
        )
    ),
]

AlgorithmSpec = Annotated[
    GpUcb
    | GpBucb
    | Ei
    | EiDeblurred
    | Reach
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


class Auto(Request):
    """The algorithm that suits the study, chosen when the study is first seen: see ``Plan``."""

    name: Literal["auto"] = Field(description="Name of the choice.")


AlgorithmChoice = Annotated[Auto | AlgorithmSpec, Field(discriminator="name")]
FitChoice = Annotated[
    Fit | Literal["auto"] | None,
    Field(
        description=(
            "Fit hyper-parameters to the answers, starting at the kernel's; without a kernel, a squared-exponential "
            "one of the candidates' scale is used. auto: where no kernel is given, and from the first check that a "
            "given one fails. Null: they stay fixed. For "
            "gp_ucb, gp_bucb, ei and ei_deblurred."
        )
    ),
]
AUTO = Auto(name="auto")


Engine = Literal[1, 2, 3]
"""Version of the rules that choices follow: a record keeps the one that its choices were made by."""
NEWEST: Engine = 3


class Plan(Reply):
    """How rows are chosen: the settings as they were given, and those left open as they follow from the study."""

    algorithm: AlgorithmSpec = Field(description="Algorithm that chooses candidates.")
    fit: Fit | Literal["auto"] | None = Field(description="How hyper-parameters are fitted; null: they stay fixed.")
    initial_rows: int = Field(description="Number of candidates of the initial design.")
    initial_design: InitialDesign = Field(description="How the initial candidates are chosen.")
    repeats: PlannedRepeats = Field(description="Whether a candidate may be queried again.")
    reasons: list[str] = Field(description="Why the settings that were left open are as they are, in words.")
    engine: Engine = 1
    """Version of the rules that the choices follow; a new run has the newest, 3. 1, of runs before version 0.3.0:
    candidates are equal if their acquisitions are the same number. Later versions: if they are after rounding to 1e-10
    standard deviations of the prior (expected improvement: to 1e-10 of itself). The seed draws one of equal ones. Later
    versions also fit hyper-parameters by another search, with a prior that keeps length-scales of coordinates together,
    and take the outcomes of a fit as one block. 3: 5 first rows, far from past ones, and choices do not depend on units
    of columns and outcomes; up to 100 columns have length-scales of their own (before: 20); of noisy candidates, half
    of the first ones are random."""
    answers_per_row: int | None = Field(None, ge=1)
    """Answers about one candidate that its cap allowed beside the release when the run began: a candidate with so many
    is not chosen again. Null: no such cap, or a run of an earlier version, which did not look at it."""
    goal: Goal = Field(BEST, description="What the run looks for.")


FITTED = (GpUcb, GpBucb, Ei, EiDeblurred, Reach)
"""Algorithms whose hyper-parameters can be fitted."""

BATCHED = (GpBucb, Ei, Reach, RandomRows, LdpMoma, Moma, IgpUcb, BoundedIgp, LaplaceAdf, Thompson)
"""Algorithms that can choose several candidates for one query."""

IMPROVING = (Ei, EiDeblurred)
"""Algorithms that compute an expected improvement."""


GRANT_FILE_MAX_BYTES = 1 << 14

StudyId = Annotated[str, Field(pattern=r"^std_[0-9a-f]{16}$")]
GrantToken = Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]+$", repr=False)]


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


CuratorUrl = Annotated[str, Field(max_length=2_000, pattern=r"^(https?|link)://[!-~]+$"), AfterValidator(_address)]


class StudyAccess(Request):
    """A study at a curator, with the token of a grant."""

    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: StudyId = Field(description="The study whose candidates to use.")
    token: GrantToken = Field(description="Token of the grant: used for this request and not stored.")
    log_key: PinnedKey = None


class ConnectionStep(Reply):
    """One step of the test."""

    name: Literal["address", "reach", "token", "key"]
    """address: a token may be sent to this address; reach: a curator answers; token: the token opens the study; key:
    the curator signs with the expected key."""
    state: Literal["ok", "failed", "not_tried"] = Field(description="not_tried: an earlier step failed.")
    detail: str = Field(description="The result, and what to do if the step failed; for people.")


class ConnectionReport(Reply):
    """Result of a connection test."""

    ok: bool = Field(description="Whether a run can be started.")
    steps: list[ConnectionStep] = Field(description="Steps, in the order in which they are tried.")
    study: StudyView | None = Field(description="The study, as the curator describes it; null if it was not reached.")


class GrantFile(StudyAccess):
    """grant.json: all that a vendor needs for a run. It holds a secret, so it goes over a private channel."""

    format: Literal["blindopt-grant-1"] = Field(description="Name and version of this format.")
    log_key: str = Field(max_length=400, description="The curator's C2SP verifier key: runs trust no other one.")
    name: Name = Field(description="Name of the modeler that the grant is for.")
    expires_at: datetime = Field(description="When the token expires.")

    @classmethod
    def of(cls, grant: GrantReply, address: str) -> Self:
        """The file of a new grant at a curator with this address."""
        return cls(
            format="blindopt-grant-1",
            curator_url=address,
            study_id=grant.study_id,
            token=grant.token,
            log_key=grant.log_key or "",
            name=grant.name,
            expires_at=grant.expires_at,
        )

    @property
    def access(self) -> StudyAccess:
        """What a run, or a test of the connection, is started with."""
        return StudyAccess.model_validate(self.model_dump(include=set(StudyAccess.model_fields)))


# --- links: a curator that only opens connections ------------------------------------------------------------

LinkId = Annotated[str, Field(pattern=r"^usr_[0-9a-f]{16}$")]
LinkRequestId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
LINK_REQUESTS_MAX = 64
"""The most requests that a curator works on at once."""
LINK_PULLED_MAX = 16
"""The most requests that it takes at once."""
LINK_PART_BYTES = 1 << 20
"""The largest part of a reply; longer ones are sent in several."""
LINK_HEAD_BYTES = 64 << 10
"""The longest line before a part of a reply."""
LINK_CARRIED_BYTES = 64 << 10
"""The longest reply that goes with a pull."""


class LinkFile(Request):
    """link.json: all that a curator needs to take requests from a modeler. It holds a secret."""

    format: Literal["blindopt-link-1"] = Field(description="Name and version of this format.")
    id: LinkId = Field(description="The link; grants of this curator have the address link://ID.")
    name: Name = Field(description="Name of the curator's side, given by the vendor.")
    url: CuratorUrl = Field(description="Address of the modeler; https, except on loopback.")
    token: GrantToken = Field(description="Token of the link.")
    ca: str | None = Field(None, max_length=4_096, description="File of the CA of the modeler's certificate, in PEM.")
    cert: str | None = Field(None, max_length=4_096, description="File of the certificate to show to it, in PEM.")
    key: str | None = Field(None, max_length=4_096, description="File of its private key, in PEM.")


class LinkRequest(Reply):
    """A request of a modeler to the curator, as it would be sent over a socket."""

    id: LinkRequestId = Field(description="Names the request in its reply.")
    method: Literal["GET", "POST"] = Field(description="Method.")
    target: str = Field(max_length=2_000, pattern=r"^/[!-~]*$", description="Path and query string.")
    headers: dict[str, Annotated[str, Field(max_length=8_192)]] = Field(max_length=32, description="Headers.")
    body: str = Field(max_length=90_000, description="Body, in base64.")


class LinkRequests(Reply):
    """The requests that wait for a curator."""

    requests: list[LinkRequest] = Field(max_length=LINK_PULLED_MAX, description="Oldest first; may be empty.")


class LinkReply(Request):
    """The head of a reply, or of a further part of one: a line of JSON before the bytes of the part."""

    request: LinkRequestId = Field(description="The request that this answers.")
    part: int = Field(ge=0, lt=2**31, description="Number of the part, from 0.")
    last: bool = Field(description="Whether the reply ends with this part.")
    status: int = Field(ge=100, le=599, description="HTTP status.")
    headers: dict[str, Annotated[str, Field(max_length=16_384)]] = Field(max_length=64)
    """Headers of the reply; only the first part counts."""


class LinkCarried(Request):
    """A short reply that goes with a pull, which spares a request."""

    head: LinkReply = Field(description="Its head; the reply has no other part.")
    body: str = Field(max_length=90_000, description="Its body, in base64.")


class LinkPull(Request):
    """What a curator says when it asks for requests."""

    working: list[LinkRequestId] = Field(max_length=LINK_REQUESTS_MAX)
    """Requests that it has and has not replied to yet."""
    carried: LinkCarried | None = Field(None, description="A reply to a request that it had.")


class LinkReceived(Reply):
    """What has come of a reply."""

    next_part: int = Field(description="Number of the part that is expected next.")


class LinkView(Reply):
    """A link, as the modeler sees it."""

    id: str = Field(description="The link.")
    name: str = Field(description="Name, given when it was made.")
    address: str = Field(description="Address of the curator in grants, link://ID.")
    state: Literal["connected", "absent", "revoked"]
    """connected: the curator takes requests now; absent: it does not; revoked: its token ended."""
    seconds_since_pull: float | None
    """Seconds since the curator last took requests; 0 while it waits for one; null: not since the start."""
    waiting: int = Field(description="Requests that have no whole reply yet.")


class LinkList(Reply):
    """The links of a modeler."""

    links: list[LinkView] = Field(description="Oldest first.")


class LinkStatus(Reply):
    """A link, as the curator sees it."""

    id: str = Field(description="The link.")
    name: str = Field(description="Name, given by the vendor.")
    url: str = Field(description="Address of the modeler.")
    address: str = Field(description="Address of this curator in grants that are used over the link, link://ID.")
    state: Literal["connected", "trying"] = Field(description="trying: the modeler is not reached; problem says why.")
    since: datetime = Field(description="When this state began.")
    problem: str | None = Field(description="What keeps it from being connected; null if nothing does.")


class LinkStatusList(Reply):
    """The links of a curator."""

    links: list[LinkStatus] = Field(description="As in the file of links.")


IntervalKind = Literal["model", "known"]
INTERVAL_NAMES: dict[IntervalKind, str] = {
    "model": "interval under the model",
    "known": "exact value",
}
"""What pages and commands call the interval of a recommendation."""


class Recommendation(display.Shown, Reply):
    """The recommended candidate, with intervals for its mean outcome and its next measurement.

    In units of the measurement.
    """

    row: int = Field(description="Number of the candidate.")
    over: Literal["asked", "all"]
    """asked: the best of the queried candidates; all: the best of all."""
    by: Literal["posterior", "estimate", "observed"]
    """posterior: best posterior mean; estimate: best estimate of an algorithm for few arms; observed: best mean of the
    answers about a candidate, if nothing is estimated."""
    mean: float = Field(description="Estimate of the candidate's mean outcome.")
    sd: float | None
    """Standard deviation of that estimate, without the noise of an answer; null: unknown."""
    interval: MeanInterval | None
    """Interval of the candidate's mean outcome, without the noise of an answer; null: unknown. With private answers
    mean and limits are clipped to centre - value_bound, centre + value_bound."""
    next_interval: MeanInterval | None = None
    """Interval of the candidate's next measurement under the model, its noise included; null: unknown. With private
    answers it is without their noise, and clipped to centre - C, centre + C, C = value_bound + noise_bound."""
    interval_kind: IntervalKind = "model"
    """model: an interval under the model, 95 % if it is right; known: the answer was an exact value, and both limits
    are this value."""
    outcomes: int = Field(description="Number of answers and past measurements that it is based on.")
    good: GoodCandidates | None = None
    """The good candidates, where the goal is many; in the view of a run without their list."""

    def as_message(self, note: str | None, salt: str = "") -> RecommendationMessage | RecommendationsMessage:
        """What the owner gets: all candidates where the goal is many and some are good, else the recommended one."""
        if (good := self.good) is None or not good.candidates:
            return RecommendationMessage(row=self.row, mean=self.mean, interval=self.interval, note=note, salt=salt)
        rows = [GoodRow(**candidate.model_dump()) for candidate in good.candidates]
        said = good.model_dump(include={"found", "queries", "by_chance", "threshold"})
        return RecommendationsMessage(rows=rows, **said, note=note, salt=salt)

    def _tables(self) -> list[display.Table]:
        values: dict[str, object] = {"Recommended candidate": self.row, "Mean outcome": self.mean}
        name = INTERVAL_NAMES[self.interval_kind].capitalize()
        if self.interval_kind == "known":
            values[name] = "yes"
        for label, interval in ((name, self.interval), ("Next measurement", self.next_interval)):
            if interval is not None and self.interval_kind != "known":
                values[label] = f"{interval[0]:.6g} to {interval[1]:.6g}"
        if (good := self.good) is not None:
            values["Good candidates"] = f"{good.found:.4g} of {good.queries} (threshold {good.threshold:.6g})"
        return [display.facts(values | {"From": f"{self.outcomes} answers"})]


class PosteriorPoint(Reply):
    """Posterior moments of f at a candidate, in units of the measurement."""

    row: int = Field(description="Number of the candidate.")
    mean: float = Field(description="Posterior mean of f.")
    sd: float
    """Posterior standard deviation of f, without the noise of an answer. Far from queried candidates the model knows
    little, and intervals made from it hold less often than it says."""
    improvement: float | None = None
    """Expected improvement of f on the best posterior mean of the queried candidates; null unless the request is for
    the best candidates."""


class PosteriorPage(Page):
    """Posterior moments of f after the answers so far, at some candidates."""

    outcomes: int
    """Number of answers and past measurements that this page is based on: it may change between pages."""
    points: list[PosteriorPoint] = Field(description="Moments by row; for a request of the best, the best first.")


class MapPoint(Reply):
    """A candidate on the map of the first two principal axes of Z."""

    row: int = Field(description="Number of the candidate.")
    first: float = Field(description="Coordinate along the first principal axis, from the centre, in scaled units.")
    second: float = Field(description="Coordinate along the second axis; 0 if the release has one column.")
    mean: float | None = Field(description="Posterior mean of f; null if the algorithm estimates nothing.")
    sd: float | None = Field(description="Posterior standard deviation of f; null if the algorithm estimates nothing.")
    asked: int = Field(ge=0, description="Number of answers about the candidate.")


class PosteriorMap(Reply):
    """Posterior moments of f over the first two principal axes of Z."""

    outcomes: int = Field(description="Number of answers and past measurements that it is based on.")
    shares: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Fraction of the release's variance along each axis."""
    rows: int = Field(description="Number of candidates; if there are fewer points, they are a regular sample.")
    points: list[MapPoint] = Field(description="All queried candidates and an even sample of the others, by row.")


class SlicePart(Reply):
    """Candidates that are near each other along an axis of Z."""

    at: float = Field(description="Mean coordinate along the axis.")
    mean: float = Field(description="Mean of their posterior means, in units of the measurement.")
    low: float = Field(description="10 % quantile of their posterior means.")
    high: float = Field(description="90 % quantile of their posterior means.")
    rows: int = Field(description="Number of candidates.")


class AxisSlice(Reply):
    """How the posterior mean changes along one axis of Z."""

    axis: int = Field(description="Number of the axis, from 1: a column of the release, or a principal axis.")
    share: float = Field(description="Fraction of the release's variance along the axis.")
    relevance: float = Field(ge=0, le=1)
    """Fraction of the variance of the posterior mean that the axis alone explains."""
    parts: list[SlicePart] = Field(description="Groups of candidates along the axis, about equally many in each.")


class PosteriorSlices(Reply):
    """Slices of the posterior mean along the axes of Z, the most relevant axis first."""

    outcomes: int = Field(description="Number of answers and past measurements that they are based on.")
    by: Literal["column", "principal_axis"]
    """column: the columns of the release; principal_axis: if the release rotates the candidates."""
    axes: list[AxisSlice] = Field(description="At most 12 principal axes, or all columns; the most relevant one first.")


class StopRules(Request):
    """Rules that end a run early. Checked before each query."""

    target: Outcome | None = None
    """Stop when the run has reached this outcome or a better one; null: no target."""
    target_by: Literal["observed", "mean"] = "observed"
    """observed: a y reaches the target; mean: the best posterior mean of the queried candidates does, for noisy y."""
    improvement: PositiveFloat | None = None
    """Stop when no remaining candidate can beat the best queried one by more than this, in units of the outcome, with
    probability 1 - delta_ucb: the largest upper bound minus the largest lower bound of queried candidates. For gp_ucb
    (with nugget in) and gp_bucb; null: never."""
    expected_improvement: PositiveFloat | None = None
    """Stop when the largest expected improvement on the best queried candidate is below this share of the standard
    deviation of the outcomes so far. A rule of thumb without a promise. For ei, and for the second half of a run of
    ei_deblurred; null: never."""
    found: PositiveFloat | None = None
    """Stop when so many good candidates are found, where the goal is many; with noisy or private answers their expected
    number. Null: never."""
    least_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Stop when the next candidate is good with a smaller probability, where the goal is many. For reach and, once it
    reaches for good ones, ei_deblurred; null: never."""

    def problem(self, goal: Goal) -> str | None:
        """Say which rule is for another goal; None if none is."""
        of_many, of_best = ("found", "least_probability"), ("target", "improvement", "expected_improvement")
        others = of_best if isinstance(goal, FindMany) else of_many
        rule = next((name for name in others if getattr(self, name) is not None), None)
        if rule is None:
            return None
        if isinstance(goal, FindMany):
            return f"stop.{rule} is for the best candidate, and the goal is many: use found or least_probability"
        return f"stop.{rule} is for the goal many: say what is good by a goal with threshold or share"


RunId = Annotated[str, Field(pattern=r"^run_[0-9a-f]{16}$")]


class RunSpec(Request):
    """One optimization against one study of a curator, as it is stored: without its secret."""

    name: Name = Field("run", description="Name, for people.")
    curator_url: CuratorUrl = Field(description="Address of the curator; https, except on loopback.")
    study_id: StudyId = Field(description="The study to optimize.")
    algorithm: AlgorithmChoice = AUTO
    """Algorithm that chooses candidates; auto: the one that suits the study."""
    queries: int | None = Field(None, ge=1, le=100_000)
    """Number of all queries, the initial ones among them; null: iterations after the initial ones."""
    iterations: int = Field(50, ge=1, le=100_000)
    """Number of queries after the initial ones, where queries is null."""
    initial_rows: InitialRows = None
    seed: Seed | None = None
    """Seed of the initial design and of ties: the same seed makes the same choices. Null: one is drawn for the run, and
    stored."""
    batch_size: int = Field(1, ge=1, le=100)
    """Candidates in one query; one for gp_ucb, ei_deblurred, ldp_ata, ldp_tgp, tgp_tight, ata and tgp."""
    repeats: Repeats = "auto"
    initial_design: InitialDesignChoice = None
    stop: StopRules = Field(StopRules(), description="Rules that end the run early.")
    goal: Goal | None = Field(None, description="What the run looks for; null: the goal of the study.")
    kernel: Kernel | None = Field(None, description="Hyper-parameters; null: those of the study.")
    fit: FitChoice = "auto"
    continue_from: RunId | None = None
    """An earlier run of the same study: its answers and past measurements, as they are now, become past measurements of
    this one, without a query or a charge."""
    log_key: PinnedKey = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        name = self.algorithm.name
        if self.queries is not None and (self.initial_rows or 0) >= self.queries:
            raise ValueError("queries counts the initial ones too: it must be larger than initial_rows")
        if self.goal is not None and (problem := self.stop.problem(self.goal)):
            raise ValueError(problem)
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

    def iterations_after(self, initial_rows: int) -> int:
        """The number of queries after so many initial ones."""
        return self.iterations if self.queries is None else self.queries - initial_rows


class RunCreate(RunSpec):
    """One optimization against one study of a curator."""

    token: GrantToken = Field(description="Token of the grant: stored encrypted, never shown again.")
    observations: list[Observation] = Field([], max_length=OBSERVATIONS_MAX)
    """Past measurements to start with. The curator never sees them."""
    hold: bool = False
    """true: create the run paused, so that observations can be imported; resume starts it."""


class TokenReplacement(Request):
    """Another token of the same grant, for a run that outlives its first token."""

    token: GrantToken = Field(description="New token of the grant: stored encrypted, never shown again.")


RunState = Literal["queued", "running", "paused", "waiting", "completed", "failed", "stopped"]


EndedBecause = Literal[
    "budget", "exhausted", "target", "improvement", "found", "least_probability", "refused", "stopped", "failed"
]


class Best(Reply):
    """The best outcome of a run."""

    trial: int = Field(description="Number of the trial, from 1.")
    row: int = Field(description="Number of the candidate.")
    y: float = Field(description="The outcome, in units of the measurement.")


class RunProblem(Reply):
    """Why a run failed."""

    code: str = Field(description="Stable error code, for programs.")
    detail: str = Field(description="What is wrong, for people.")


class RunEngine(Reply):
    """What the candidates of a run are computed with. It changes time and memory, and no choice."""

    name: Literal["process", "threads", "dask"]
    """process: as one part; threads: in parts, side by side; dask: in parts at workers of a cluster."""
    parts: int = Field(description="Parts that the candidates are divided into.")
    workers: int = Field(description="Threads, or workers of the cluster, that work on them at once.")
    memory_bytes: int = Field(description="Bytes of memory that the run may need at most, estimated at its start.")


class RunView(Reply):
    """A run and its progress."""

    id: str = Field(description="run_...")
    name: str = Field(description="Name, for people.")
    state: RunState
    """queued, running; paused until it is resumed; waiting for people who measure, or for a curator that does not
    answer, after which it continues by itself; completed, failed or stopped: final."""
    waiting_for: Literal["curator", "people", "engine"] | None = None
    """What a waiting run waits for. people: a person or a laboratory measures; curator: the curator does not answer, or
    refuses temporarily; engine: the workers that candidates are computed on. Null in other states."""
    waiting_since: datetime | None = None
    """Since when a waiting run waits; for people: when the curator accepted the query."""
    open_measurements: int = Field(0, description="Number of queried candidates that are not measured yet.")
    curator_url: str = Field(description="Address of the curator.")
    study_id: str = Field(description="The study at the curator.")
    algorithm: AlgorithmChoice = Field(description="Algorithm given with the run; auto: that of the plan.")
    plan: Plan | None = None
    """How candidates are chosen, and why; null before the first contact with the curator."""
    queries: int | None = Field(None, description="Number of all queries given with the run; null: by iterations.")
    iterations: int = Field(description="Number of queries after the initial ones, where queries is null.")
    initial_rows: int | None
    """Size of the initial design given with the run; null: that of the plan."""
    seed: int = Field(description="Decides initial rows and ties.")
    continue_from: str | None = Field(None, description="The run whose answers this one began with.")
    archived_at: datetime | None = Field(None, description="When it was archived; null: it is not.")
    note: str | None = Field(None, description="Note of a vendor, for people.")
    tags: list[str] = Field([], description="Tags, in order.")
    batch_size: int = Field(1, description="Candidates in one query.")
    repeats: Repeats = "algorithm"
    initial_design: InitialDesign | None = "random"
    """How the initial candidates are chosen, as given with the run; null: as the plan says."""
    stop: StopRules = Field(StopRules(), description="Rules that end the run early.")
    observations: int = Field(0, description="Number of past measurements that it started with.")
    kernel: Kernel | None = Field(description="Kernel given with the run; null: that of the study.")
    fit: Fit | Literal["auto"] | None = None
    """Fit settings given with the run; auto: as the plan says; null: hyper-parameters are fixed."""
    fitted: Fitted | None = Field(None, description="The last fit; null before the first.")
    study: StudyView | None
    """The study, as the curator describes it; null before the first contact."""
    trials: int = Field(description="Number of trials answered so far.")
    declined: int = 0
    """Number of declined trials: they count against the budget, and their candidates are not queried again."""
    engine: RunEngine | None = None
    """What its candidates were last computed with; null before the first contact."""
    best: Best | None
    """Best outcome; null before the first answer, and where answers are randomized: see recommendation."""
    recommendation: Recommendation | None = None
    """Stored when the run has completed; GET .../recommendation returns it at any time."""
    created_at: datetime = Field(description="When it was queued.")
    started_at: datetime | None = Field(description="When it first started.")
    heartbeat_at: datetime | None = Field(description="When it last made progress; null before the first step.")
    waits_until: datetime | None = Field(description="When a waiting run retries; null in other states.")
    ended_at: datetime | None = Field(description="When it ended; null before.")
    ended_because: EndedBecause | None
    """budget: all queries were answered or declined; exhausted: no candidate remains; target: it was reached;
    improvement: no candidate can improve, or is expected to, by more than the run's rule requires; found: so many good
    candidates were found; least_probability: the next one was less probably good."""
    can_resume: bool = False
    """Whether it can be resumed: it is paused, waits, or failed because no curator was reached."""
    problem: RunProblem | None = Field(description="Why it failed, was refused, or waits; otherwise null.")
    warnings: list[str] = []
    """Warnings in words: about the chosen algorithm for this study, and its model after the answers so far."""

    @property
    def queries_max(self) -> int:
        """The most queries that it makes: before its plan, without the initial ones that this may add."""
        initial_rows = self.initial_rows if self.plan is None else self.plan.initial_rows
        return self.queries or self.iterations + (initial_rows or 0)


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

    counts: RunCounts
    """Number of all runs in each state that are not archived, not only on this page."""

    runs: list[RunView] = Field(description="Runs, in the order of creation.")
    tags: list[str] = Field([], description="Tags of all runs that are not archived.")


class TrialView(Reply):
    """A trial: a chosen candidate with its answer. Moments are those of the choice, in units of the measurement."""

    number: int = Field(description="Number of the trial, from 1.")
    phase: Literal["initial", "algorithm"]
    """initial: part of the initial design; algorithm: chosen by the algorithm."""
    query: int = Field(description="Number of the first trial that was chosen together with it.")
    row: int = Field(description="Number of the candidate.")
    mean: float | None = Field(description="Posterior mean at the candidate; null for a random one.")
    sd: float | None = Field(description="Posterior standard deviation; null for a random candidate.")
    acquisition: float | None
    """Value of the acquisition function, in the direction of maximization; for ei the logarithm of the expected
    improvement."""
    ties: int = Field(description="Number of candidates that shared the maximum; one was drawn with the run's seed.")
    probability: float | None = None
    """Probability that it is good, as it was sent to people who measure; null: none was sent."""
    fitted: Fitted | None = None
    """Hyper-parameters fitted just before this choice; null: unchanged since the previous trial."""
    chosen_at: datetime = Field(description="When the candidate was chosen.")
    asked_at: datetime | None = None
    """When the curator accepted the query for measurement; null if it answered at once."""
    answered_at: datetime | None = Field(description="When the curator answered or declined; null before.")
    query_id: str | None = Field(description="The query at the curator; null until the curator accepted it.")
    y: float | None = Field(description="The latest outcome; null before the first one, and if it is declined.")
    declined: bool = False
    """Whether it has no answer: it was declined, unless a late one arrives, or a cap allowed none."""
    version: int | None = None
    """Latest version of the query's answer; more than 1: it was corrected."""
    plays: int | None = Field(description="Number of measurements of which the answer is the mean; null without one.")
    passport: NoisePassport | None = Field(description="Noise description of the answer; null without one.")


class TrialPage(Page):
    """A page of trials."""

    trials: list[TrialView] = Field(description="Trials, in the order of their numbers or as sorted.")
    total: int | None = Field(None, description="Number of trials that match; null unless the request has an offset.")


class CurvePoint(Reply):
    """A trial of a run, for a chart. Moments as in TrialView."""

    number: int = Field(description="Number of the trial.")
    y: float | None = Field(description="The outcome; null before it is known, and if it is declined.")
    best: float | None
    """Best answer up to this trial; null before the first, and where answers are randomized."""
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
    plays: int | None = Field(description="Number of measurements of which the answer is the mean.")
    passport: NoisePassport | None = Field(description="Noise description of the answer.")


class RunExport(Reply):
    """Everything needed to replay a run, given the release."""

    run: RunView = Field(description="The run.")
    trials: list[TrialView] = Field(description="All trials, in order.")
    observations: list[Observation] = Field([], description="Past measurements that it started with, in order.")
    versions: list[AnswerVersion] = []
    """Answer versions, in the order of arrival, of a study whose outcome is measured on request."""
