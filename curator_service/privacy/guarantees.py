"""Guarantees and their gaps in words, and what a release lets anyone believe about a record (docs/privacy.md).

The single source of these words for the API and for the page of gaps in docs/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import exp, log, sqrt
from statistics import NormalDist

from blindopt.wire import (
    ColumnMeasurement,
    GaussianProjectionRelease,
    GaussianRelease,
    GroupsRelease,
    IdentityRelease,
    NoAnswerNoise,
    NoiseLaw,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    PrivateCells,
    SoundRelease,
    Strength,
    StudyCreate,
    amount,
)
from curator_service.privacy.answers import concrete_answers
from curator_service.privacy.calibration import Concrete, concrete, failure
from curator_service.privacy.prices import answers_add_up, exact, group_delta, is_groups

EXACT_ANSWERS = (
    "The measurement y of each queried row is released without privacy noise, and the number of rows is public."
)
_ANSWER_LAWS = {
    "laplace": "clipped, with Laplace noise",
    "one_bit": "clipped, then one of two values",
    "piecewise": "clipped, then a value of a bounded interval",
}
_DIGITS = Context(prec=3, rounding=ROUND_CEILING)
SANDBOX = "Sandbox: made-up rows and values; no person is behind it."
CHOOSING = (
    "Made from the private records. Choosing by this leaks what is not counted: epsilon, delta, Delta, r, the "
    "mechanism, caps, bounds, scales, the kernel, and whether to release at all are taken as public. Choose them from "
    "public knowledge, and use this only to check what you chose."
)
"""What the owner reads beside every figure that is computed from private records before a release."""
SIMULATION = (
    "A simulation: no person is behind it. Each answer stands for another person's, and all answers about a row are "
    "made from one stored value of a dataset that its owner declares public."
)


def guarantee(
    spec: StudyCreate,
    release: Concrete | None = None,
    *,
    withdrawn: str | None = None,
    public: bool = False,
    sandbox: bool = False,
) -> str:
    """The guarantee of a study, in words for every party.

    ``release``: the one that ran, if ``auto`` chose. ``withdrawn``: why its mechanism was withdrawn, if it was.
    ``public``: whether the dataset is declared public. ``sandbox``: whether it is made up.
    """
    ran = release or concrete(spec)[0]
    promised = _release(ran, spec)
    if withdrawn is not None:
        promised = (
            f"Withdrawn: {withdrawn.rstrip('. ')}. Do not rely on what {ran.mechanism} promised for the features. "
            "No new release is made with it; Z that has left cannot come back, so a study that is open goes on "
            f"answering queries until its owner closes it. It was: {promised}"
        )
    simulated = public and spec.privacy_unit == "answer" and isinstance(spec.measurement, ColumnMeasurement)
    label = f"{SIMULATION} " if simulated else ""
    if sandbox:
        label = f"{SANDBOX} For real records the same settings mean: "
    return f"{label}{promised} {_answers(spec, ran if withdrawn is None and _is_sound(ran) else None)}"


def whole(spec: StudyCreate, release: Concrete) -> str | None:
    """Epsilon of a record with all answers that its cap allows, where groups protect whole records; else None."""
    return spec.budget.epsilon_per_row if isinstance(release, GroupsRelease) else None


def belief(release: Concrete, *, record: str | None = None) -> str | None:
    """How sure anyone can become about a record from a release, in words; None where nothing is promised.

    ``record``: epsilon of a record with all answers, as ``whole`` returns it.
    """
    if isinstance(release, IdentityRelease | PoGpUcbRelease):
        return None
    most = surest(amount(record or release.epsilon))
    share = "practically certain" if most > 0.999 else f"at most {_percent_up(most)} % sure"
    but = ", except for events that delta allows" if failure(release) else ""
    values = (
        "any two records" if isinstance(release, GroupsRelease) else "two values that differ by what is hidden (Delta)"
    )
    who = f"someone undecided (50/50) between {values}"
    if record is not None:
        return f"From the release and all answers that the cap on a record allows, {who} becomes {share}."
    return f"From the release alone, {who} becomes {share}{but}. Answers come on top."


def _percent_up(share: float) -> str:
    """A share in percent with three digits, never less than it is."""
    return exact(_DIGITS.multiply(Decimal(share), 100))


def unit_of_privacy(spec: StudyCreate) -> str:
    """Whose data the guarantee of a study is about, in words."""
    if not answers_add_up(spec):
        return "One record for its features, and for each answer the person behind it, who is another one each time."
    if is_groups(spec):
        of = f"One person: {spec.rows_per_person} records at most" if spec.person_column else "One record"
        return f"{of}, whole: all features and the value behind the answers together."
    if spec.person_column:
        return (
            f"One person: the features of {spec.rows_per_person} records at most, and all answers about them together."
        )
    return "One record: its features, and all answers about it together."


def neighbours(spec: StudyCreate, release: Concrete | None = None, left_out: Sequence[str] = ()) -> str:
    """When two datasets are neighbours in a study, in words. The number of records is public.

    ``left_out``: the columns of the file whose gaps left rows out.
    """
    if left_out:
        gaps = "Both files have the same gaps (a cell that is missing, or outside the list of categories) in"
        return f"{neighbours(spec, release)} {gaps} {', '.join(left_out)}."
    ran, whose = release or concrete(spec)[0], "one record"
    if spec.person_column:
        whose = f"each of the records of one person, {spec.rows_per_person} at most,"
    if isinstance(ran, GroupsRelease):
        return f"Two datasets with the same number of records, where {whose.rstrip(',')} is replaced by any other."
    answered = "the value behind its answers is replaced by any other"
    if isinstance(ran, IdentityRelease | PoGpUcbRelease):
        return f"Two datasets with the same number of records, where in {whose} {answered}."
    return (
        f"Two datasets with the same number of records, where in {whose} the features move by at most "
        f"{ran.sensitivity!r} in scaled units and {answered}."
    )


def _release(release: Concrete, spec: StudyCreate) -> str:
    d, k = len(spec.features), spec.rows_per_person
    whose, differ = "row's", "differ in one row, moved"
    if spec.person_column:
        whose, differ = "person's", "differ in the row of one person, moved"
        if k > 1:
            differ = f"differ in the rows of one person, {k} at most, each moved"
    match release:
        case IdentityRelease():
            return "None: the candidates are the records themselves, declared public by their owner."
        case PoGpUcbRelease():
            return (
                "As published, refuted: no differential privacy; "
                f"{d + 1} known rows reconstruct the rest where r >= {d}, and r exact linear functionals of every "
                f"other row where r < {d}."
            )
        case GroupsRelease():
            replaced = "one record is replaced by any other"
            if spec.person_column:
                replaced = f"the records of one person, {k} at most, are replaced by any others"
            what, public = "the numbers of records by group", "The groups themselves are public"
            if isinstance(cells := release.cells, PrivateCells):
                what = f"the groups' centres (epsilon {cells.epsilon}) and the numbers of records by group together"
                public = "A record belongs to the nearest centre"
            return (
                f"{release.epsilon}-differential privacy of {what}, for a whole record: where {replaced}, features and "
                f"y, any event is at most e^{release.epsilon} times as probable, whatever an attacker knows. {public}."
            )
        case GaussianRelease() | GaussianProjectionRelease() | PlanarLaplaceRelease() if delta := failure(release):
            return (
                f"({release.epsilon}, {delta!r})-differential privacy of each {whose} features: for two "
                f"datasets that {differ} by at most {release.sensitivity!r} in scaled units, any event is at "
                f"most e^{release.epsilon} times as probable under one as under the other, plus {delta!r}, "
                "whatever an attacker knows."
            )
        case _:  # planar Laplace without a delta
            return (
                f"{release.epsilon}-differential privacy of each {whose} features: for two datasets that {differ} "
                f"by at most {release.sensitivity!r} in scaled units, any event is at most "
                f"e^{release.epsilon} times as probable under one as under the other, whatever an attacker knows."
            )


def _answers(spec: StudyCreate, release: Concrete | None) -> str:
    """``release``: the release if it has a guarantee of its own, with which answers add up."""
    answers = concrete_answers(spec.answers)
    if isinstance(answers, NoAnswerNoise):
        return EXACT_ANSWERS
    if is_groups(spec):
        return _of_groups(spec, answers.epsilon, release)
    text = (
        f"Each released y is {answers.epsilon}-differentially private ({_ANSWER_LAWS[answers.mechanism]}): no other "
        f"value of y makes an answer more than e^{answers.epsilon} times as probable. The number of rows is public, "
        "and the vendor chooses which candidates to query."
    )
    if answers.plays == "mean":
        text += " Several measurements of a candidate in one query are released once, as their mean: this holds for "
        text += "all of them." if answers_add_up(spec) else "each of them, as another person's."
    if not isinstance(spec.measurement, ColumnMeasurement):
        text += " A corrected answer is released again: its loss adds to that of the answer before it."
    if not answers_add_up(spec):
        return f"{text} Each answer is counted as another person's."
    caps = [cap for cap in (spec.budget.epsilon_per_row, spec.budget.epsilon_total) if cap is not None]
    cap = min(caps, key=amount, default=None)  # what bounds the study bounds each row
    whose = "the rows of one person" if spec.person_column else "one row"
    if release is not None:
        delta = getattr(release, "delta", None)
        most = cap if delta is None else f"({cap}, {delta!r})"
        added, to = f"Answers about {whose} add up, with the release", f", to {most} at most."
    else:  # public records cost 0, and an unsound release has no bound
        added, to = f"Answers about {whose} add up", f" to {cap} at most."
    return f"{text} {added}{to}" if cap else f"{text} {added}: the study sets no cap on the sum."


def _of_groups(spec: StudyCreate, epsilon: str, release: Concrete | None) -> str:
    """The promise about answers of groups. ``release``: None where that of the numbers of records is withdrawn."""
    whose = "The records of one person" if spec.person_column else "A record"
    text = (
        f"Each answer is the mean of a group's clipped y with Laplace noise: {epsilon}-differentially private for what "
        f"stays in the group, and half of that for what leaves or enters it. {whose} can only be in the groups that "
        "lose most, so the sum is at most that of the group which was queried most, however many others were queried"
    )
    caps = [cap for cap in (spec.budget.epsilon_per_row, spec.budget.epsilon_total) if cap is not None]
    if not caps:
        return f"{text}: the study sets no cap on it."
    added = "" if release is None else ", with the release,"
    return f"{text}: at most {min(caps, key=amount)}{added} for replacing everything about it."


# --- what is not promised -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """A property that is not protected, and the studies that it applies to."""

    heading: str
    says: str
    applies: Callable[[StudyCreate, Concrete], bool] = lambda spec, release: True
    adds: Callable[[StudyCreate], str] = lambda spec: ""
    """What a study's own numbers add to it."""

    def sentence(self, spec: StudyCreate) -> str:
        return f"{self.heading}: {self.says}{self.adds(spec)}"


def _is_sound(release: Concrete) -> bool:
    return not isinstance(release, IdentityRelease | PoGpUcbRelease)


GAPS: tuple[Gap, ...] = (
    Gap(
        "Features",
        "without a sound release they are published as they are, or can be rebuilt from a few known rows.",
        lambda spec, release: not _is_sound(release),
    ),
    Gap(
        "Changes larger than Delta",
        "a person whose features could have been further away than Delta, in scaled units, gets weaker protection the "
        "further their values could have been.",
        lambda spec, release: _is_sound(release) and not isinstance(release, GroupsRelease),
    ),
    Gap(
        "y",
        "without an answer mechanism the vendor gets the exact value; measurement noise is no privacy.",
        lambda spec, release: isinstance(spec.answers, NoAnswerNoise),
    ),
    Gap(
        "Answers about one row",
        "without a cap on epsilon per row they add up without a limit.",
        lambda spec, release: (
            not isinstance(spec.answers, NoAnswerNoise)
            and answers_add_up(spec)
            and spec.budget.epsilon_per_row is None
            and spec.budget.epsilon_total is None
        ),
    ),
    Gap(
        "Answers about one person",
        "each is counted as another person's; where one person is behind several, the losses add up.",
        lambda spec, release: not isinstance(spec.answers, NoAnswerNoise) and not answers_add_up(spec),
    ),
    Gap(
        "A person with several rows",
        "where the file does not say whose each row is, the promise is for a row: a person with k rows loses k times "
        "as much (and with a delta k e^((k - 1) epsilon) times the delta).",
        lambda spec, release: _is_sound(release) and not spec.person_column,
        lambda spec: _declared(spec),
    ),
    Gap(
        "Rows of one person",
        "which rows are the same person's, and how many each person has, is not hidden: a refusal at the cap on a "
        "person can reveal it to the vendor, and the exposure of rows to auditors.",
        lambda spec, release: spec.person_column,
    ),
    Gap(
        "Sizes",
        "how many rows there are, the shape of Z, and the mechanism are public. Where rows with missing values were "
        "left out, how many are left depends on which records have gaps, so neighbours have the same gaps: "
        "whether a cell is missing, or outside the list of categories, is not hidden there.",
    ),
    Gap(
        "Queries",
        "the vendor knows which candidates were queried, how often and when, since it chose them. A refusal states "
        "what its own grant has spent, and no amount of another; but whether a request is refused depends on what all "
        "vendors of the study have spent, so requests of several sizes show how much the others have left.",
    ),
    Gap(
        "Timing",
        "replies leave when ready, so their delay can reveal a little. Set a fixed reply time to prevent it.",
        lambda spec, release: spec.reply_after_ms is None,
    ),
    Gap(
        "Measuring",
        "the vendor sees how long a measurement takes, that a candidate was not measured, and that an answer was "
        "corrected or taken back. This can depend on the person behind the record.",
        lambda spec, release: not isinstance(spec.measurement, ColumnMeasurement),
    ),
    Gap(
        "What the owner replies",
        "whether a recommendation is accepted, rejected or measured, how a request for budget is decided, and the "
        "words with it reach the vendor: where the owner decided by looking at the record, nothing counts that.",
    ),
    Gap(
        "Public inputs",
        "epsilon, delta, Delta, r, the mechanism, caps, bounds, scales, the kernel, lists of categories, values that "
        "fill gaps, the parts or centres that are declared for groups, their number and smallest size, and whether to "
        "release at all are taken as public: where they were computed from the records, or chosen by looking at them, "
        "as in a preview or a forecast on the records, nothing of what is promised holds.",
    ),
    Gap(
        "Several studies of one dataset",
        "what studies and tunings of one file cost a record adds up in the account of that file. Two files that share "
        "people are two accounts: the owner has to add them.",
    ),
    Gap(
        "What holds for many",
        "what the records show about people in general is meant to be learned, and applies to each person too.",
    ),
    Gap(
        "Who withdraws",
        "what has left cannot come back. A record can be withheld from then on: it is declined to vendors, which "
        "shows them that it was withheld or not measured, and left out of later releases; its candidate stays with "
        "them, and the logs stay. Where candidates are groups it is left out of their sums, and nothing shows that.",
    ),
    Gap(
        "Who sees what",
        "the promise is about what the vendor gets, and so about everyone to whom the vendor passes it on. The "
        "curator's machine, people who can read its folder, and the owner, with previews and reports, see what no "
        "noise protects. Auditors read in the log that a release was abandoned or a forecast failed: with the "
        "published mechanism PO-GP-UCB that can show them that features are linearly dependent.",
    ),
)


def not_protected(spec: StudyCreate, release: Concrete | None = None) -> list[str]:
    """The gaps of a study, in words for every party."""
    ran = release or concrete(spec)[0]
    return [gap.sentence(spec) for gap in GAPS if gap.applies(spec, ran)]


def _declared(spec: StudyCreate) -> str:
    """The loss of a person with as many rows as the owner declares, where that is more than one."""
    k = spec.rows_per_person
    if k == 1 or not isinstance(spec.release, SoundRelease):
        return ""
    return (
        f" The owner declares {k} rows of a person at most: by the release she loses "
        f"{of_person(amount(spec.release.epsilon), getattr(spec.release, 'delta', None), k)}."
    )


def of_person(epsilon: Decimal, delta: float | None, k: int) -> str:
    """What a person with ``k`` rows loses where each row is promised (epsilon, delta), by group privacy."""
    if not delta:
        return f"{k} times as much, {exact(k * epsilon)}"
    return f"epsilon {exact(k * epsilon)} with delta {group_delta(epsilon, Decimal(repr(delta)), k)}"


def of_bounds(epsilon: str, records: int, *, person: bool) -> str:
    unit = f"person, with up to {records} records" if person else "record"
    replaced = "the records of one person by any others" if person else "one record by any other"
    return (
        f"{epsilon}-differential privacy of each {unit}, without a delta: replacing {replaced} makes no "
        f"quantiles more than e^{epsilon} times as probable. The number of records is public, and so is what was "
        "requested: columns, outer ranges, quantiles and epsilon."
    )


RANGES: tuple[tuple[Decimal, Strength], ...] = ((Decimal(1), "strong"), (Decimal(3), "moderate"), (Decimal(6), "weak"))
"""The largest epsilon of each named range; above all of them it is nearly none."""
RIGHT = 0.75
"""How often the best guess between two values may be right for them to count as confused: three times in four."""


def strength(epsilon: Decimal) -> Strength:
    """The name of the range that epsilon is in."""
    return next((name for most, name in RANGES if epsilon <= most), "nearly none")


def surest(epsilon: Decimal) -> float:
    """The largest belief in one of two values that differ by Delta, of someone who began with 1/2; no delta counted.

    Bayes: the odds change by the ratio of two likelihoods, at most e^epsilon.
    """
    return 1 / (1 + exp(-float(epsilon)))


def confused_within(law: NoiseLaw, d: int, rows: int = 1) -> float | None:
    """The largest change, in scaled units, between whose two values no guess is right more often than 3 times in 4.

    Of someone who began with 1/2, about a record of ``d`` features, or about ``rows`` records of one person that all
    change so. The best guess is right with probability (1 + T) / 2, with T the total variation of the two laws of Z: of
    Gaussian noise exactly Phi(sqrt(rows) v / (2 sd)); of planar Laplace noise, which is a-private with its slope
    a = sqrt(d + 1) / sd, at most e^(rows a v) / (1 + e^(rows a v)). None for other noise.
    """
    if law.sd is None or law.family not in ("gaussian", "planar_laplace"):
        return None
    if law.family == "gaussian":
        return 2 * law.sd * NormalDist().inv_cdf(RIGHT) / sqrt(rows)
    return log(RIGHT / (1 - RIGHT)) * law.sd / (sqrt(d + 1) * rows)
