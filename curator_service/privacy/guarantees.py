"""Guarantees and their gaps in words, and what a release lets anyone believe about a record (docs/privacy.md).

The single source of these words for the API and for the page of gaps in docs/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import exp, log, sqrt
from statistics import NormalDist

from blindopt import wire
from curator_service.privacy.calibration import Concrete, Local, concrete, failure, of_axes
from curator_service.privacy.prices import ONE_FEATURE, answers_add_up, exact, group_delta, is_groups

EXACT_ANSWERS = (
    "The curator returns the exact outcome of each queried record, without privacy noise. The number of records is "
    "public."
)
_ANSWER_LAWS = {
    "laplace": "clipped, with Laplace noise",
    "one_bit": "clipped, then one of two values",
    "piecewise": "clipped, then a value of a bounded interval",
}
_DIGITS = Context(prec=3, rounding=ROUND_CEILING)
SANDBOX = "Sandbox: made-up records and outcomes. No person is behind it."
CHOOSING = (
    "Computed from the private records. Choosing by this leaks what is not counted: epsilon, delta, the hidden "
    "change, r, the mechanism, caps, bounds, scales, the kernel, and whether to release are taken as public. Choose "
    "them from public knowledge, and use this only to check your choice."
)
"""What the owner reads beside every figure that is computed from private records before a release."""
SIMULATION = (
    "A simulation: no person is behind it. Each answer stands for another person's, and all answers about a "
    "record are made from one stored value of a dataset that its owner declares public."
)


def guarantee(
    spec: wire.StudyCreate,
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
            "The curator makes no new release with it. A vendor keeps a release that it received, so an open study "
            f"continues to answer queries until its owner closes it. It was: {promised}"
        )
    simulated = public and spec.privacy_unit == "answer" and isinstance(spec.measurement, wire.ColumnMeasurement)
    label = f"{SIMULATION} " if simulated else ""
    if sandbox:
        label = f"{SANDBOX} For real records the same settings mean: "
    second = "" if withdrawn is not None or not isinstance(ran, wire.PlanarLaplaceRelease) else _second_draw(spec, ran)
    if isinstance(ran, wire.AxesRelease):
        second = _whose_axes(ran, len(spec.features))
    return f"{label}{promised}{second} {_answers(spec, ran if withdrawn is None and _is_sound(ran) else None)}"


def whole(spec: wire.StudyCreate, release: Concrete) -> str | None:
    """Epsilon of a record with all answers that its cap allows, where groups protect whole records; else None."""
    return spec.budget.epsilon_per_row if isinstance(release, wire.GroupsRelease) else None


def of_measured(spec: wire.StudyCreate) -> Decimal | None:
    """Epsilon of the features of a record or person whose records have all left again; None where none does."""
    if spec.refine is None or not isinstance(spec.release, wire.LocalRelease):
        return None
    return wire.amount(spec.release.epsilon) + spec.protected_rows * wire.amount(spec.refine.epsilon)


def belief(release: Concrete, *, record: str | None = None, measured: Decimal | None = None) -> str | None:
    """How sure anyone can become about a record from a release, in words; None where nothing is promised.

    ``record``: epsilon of a record with all answers, as ``whole`` returns it. ``measured``: as ``of_measured`` does.
    """
    if isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease):
        return None
    share = _share(wire.amount(record or release.epsilon))
    but = ", except for events that delta allows" if failure(release) else ""
    values = (
        "any two records" if isinstance(release, wire.GroupsRelease) else "two values that differ by the hidden change"
    )
    if is_one_feature := wire.hides_one_feature(release):
        values = values.replace("two values", "two values of one feature")
    who = f"someone undecided (50/50) between {values}"
    if record is not None:
        return f"From the release and all answers that the cap on a record allows, {who} becomes {share}."
    again = "" if measured is None else f" With the second draw of a measured record: {_share(measured)}{but}."
    if is_one_feature:
        again += f" If two features differ so at once: {_share(2 * (measured or wire.amount(release.epsilon)))}."
    return f"From the release alone, {who} becomes {share}{but}.{again} Answers add to this."


def _share(epsilon: Decimal) -> str:
    """The largest belief, in words, never less than it is."""
    most = surest(epsilon)
    return "practically certain" if most > 0.999 else f"at most {percent_up(most)} % sure"


def percent_up(share: float) -> str:
    """A share in percent with three digits, never less than it is."""
    return exact(_DIGITS.multiply(Decimal(share), 100))


def unit_of_privacy(spec: wire.StudyCreate) -> str:
    """Whose data the guarantee of a study is about, in words."""
    if not answers_add_up(spec):
        return "One record for its features. For each answer the person behind it, a different person each time."
    if is_groups(spec):
        of = f"One person: {spec.rows_per_person} records at most" if spec.person_column else "One record"
        return f"{of}, whole: all features and the value behind the answers together."
    if spec.person_column:
        return (
            f"One person: the features of {spec.rows_per_person} records at most, and all answers about them together."
        )
    return "One record: its features, and all answers about it together."


def neighbours(spec: wire.StudyCreate, release: Concrete | None = None, gaps: Sequence[str] = ()) -> str:
    """When two datasets are neighbours in a study, in words. The number of records is public.

    ``gaps``: the columns of the file whose gaps left rows out, or were shown to the owner before the choice.
    """
    if gaps:
        cells = "a cell that is missing, unreadable, or outside the list of categories"
        return f"{neighbours(spec, release)} Both files have the same gaps ({cells}) in {', '.join(gaps)}."
    ran, whose = release or concrete(spec)[0], "one record"
    if spec.person_column:
        whose = f"each of the records of one person, {spec.rows_per_person} at most,"
    if isinstance(ran, wire.GroupsRelease):
        return f"Two datasets with the same number of records, where {whose.rstrip(',')} is replaced by any other."
    answered = "the value behind its answers is replaced by any other"
    if isinstance(ran, wire.IdentityRelease | wire.PoGpUcbRelease):
        return f"Two datasets with the same number of records, where in {whose} {answered}."
    return (
        f"Two datasets with the same number of records, where in {whose} the features move by at most "
        f"{_moves(ran)} and {answered}."
    )


def _moves(release: Local) -> str:
    """How far a record may move, in words."""
    over = ", added up over the features," if wire.hides_one_feature(release) else ""
    return f"{release.sensitivity!r} in scaled units{over}"


def _release(release: Concrete, spec: wire.StudyCreate) -> str:
    d, k = len(spec.features), spec.rows_per_person
    whose, differ = "record's", "differ in one record, moved"
    if spec.person_column:
        whose, differ = "person's", "differ in the record of one person, moved"
        if k > 1:
            differ = f"differ in the records of one person, {k} at most, each moved"
    match release:
        case wire.IdentityRelease():
            return "None: the candidates are the records themselves, declared public by their owner."
        case wire.PoGpUcbRelease():
            return (
                "As published, and refuted: no differential privacy. "
                f"{d + 1} known records reconstruct all others if r >= {d}, and r exact linear functionals of every "
                f"other record if r < {d}."
            )
        case wire.GroupsRelease():
            replaced = "one record is replaced by any other"
            if spec.person_column:
                replaced = f"the records of one person, {k} at most, are replaced by any others"
            changed, public = "the numbers of records by group", "The groups themselves are public"
            if isinstance(cells := release.cells, wire.PrivateCells):
                changed = f"the groups' centres (epsilon {cells.epsilon}) and the numbers of records by group together"
                public = "A record belongs to the nearest centre"
            return (
                f"{release.epsilon}-differential privacy of {changed}, for a whole record: if {replaced}, features and "
                f"outcome, any event is at most e^{release.epsilon} times as probable, whatever an attacker knows. "
                f"{public}."
            )
        case (
            wire.GaussianRelease() | wire.GaussianProjectionRelease() | wire.PlanarLaplaceRelease() | wire.AxesRelease()
        ) if delta := failure(release):
            return (
                f"({release.epsilon}, {delta!r})-differential privacy of each {whose} features: for two "
                f"datasets that {differ} by at most {release.sensitivity!r} in scaled units, any event is at "
                f"most e^{release.epsilon} times as probable under one as under the other, plus {delta!r}, "
                "whatever an attacker knows."
            )
        case _:  # planar Laplace without a delta
            return (
                f"{release.epsilon}-differential privacy of each {whose} features: for two datasets that {differ} "
                f"by at most {_moves(release).rstrip(',')}, any event is at most "
                f"e^{release.epsilon} times as probable under one as under the other, whatever an attacker knows."
                + (f" {ONE_FEATURE}" if wire.hides_one_feature(release) else "")
            )


def _whose_axes(release: wire.AxesRelease, d: int) -> str:
    """Where the axes of a release come from."""
    if release.axes == "public":
        return " It lies on axes of a public sample, in which no record takes part."
    epsilon, delta = of_axes(release)
    origin = f" It lies on axes of the records, found for epsilon {exact(epsilon)} and delta {delta!r} of these."
    if release.r != d:
        return origin
    return f"{origin} They serve a search less than all features, which therefore have noise of their own each."


def _second_draw(spec: wire.StudyCreate, release: wire.PlanarLaplaceRelease) -> str:
    """The promise where measured records leave again (docs/privacy.md, Theorem R)."""
    if (refine := spec.refine) is None:
        return ""
    first, second = wire.amount(release.epsilon), wire.amount(refine.epsilon)
    plus = "" if release.delta is None else f" plus {release.delta!r}"
    queried, most = "it was queried", f"e^{exact(first + second)}"
    if spec.protected_rows > 1:
        queried, most = "k of the person's records were queried", f"e^({release.epsilon} + k {refine.epsilon})"
    return (
        " A measured record leaves again, with its first answer: its features with less noise, drawn once, however "
        f"often and by whom it is queried. This second draw is {refine.epsilon}-differentially private, without a "
        "delta. Counting features alone, for anyone who sees all that the vendor received and knows which candidate is "
        f"whose: events in which a record was not queried are at most e^{release.epsilon} times as probable{plus}, "
        f"and events in which {queried} at most {most} times{plus}. Beforehand everybody is promised the "
        f"second bound alone, because the vendor chooses whom to query: at most {refine.persons} persons."
    )


def consent(spec: wire.StudyCreate) -> str | None:
    """What is read to a person before her record is measured and leaves again; None where it does not."""
    if (most := of_measured(spec)) is None or not isinstance(spec.release, wire.LocalRelease):
        return None
    persons = spec.rows_per_person // spec.protected_rows  # all her records, also where the file does not say which
    first, most, unit = persons * wire.amount(spec.release.epsilon), persons * most, spec.release.sensitivity
    but = "" if spec.release.delta is None else f", except for events that delta {spec.release.delta!r} allows"
    changes = " or ".join(f"{feature.column} {feature.unit * unit:.3g}" for feature in spec.features)
    before, after = percent_up(surest(first)), percent_up(surest(most))
    return (
        "You were chosen to be measured. A blurred copy of everybody's data was sent before: from it nobody who wavers "
        f"between two values of yours, {changes} apart, becomes surer than {before} %{but}. If you agree, your result "
        f"is sent with a second, less blurred copy: then {after} %. If you do not, neither is sent."
    )


def _answers(spec: wire.StudyCreate, release: Concrete | None) -> str:
    """``release``: the release if it has a guarantee of its own, with which answers add up."""
    answers = wire.concrete_answers(spec.answers)
    if isinstance(answers, wire.NoAnswerNoise):
        return EXACT_ANSWERS
    if is_groups(spec):
        return _of_groups(spec, answers.epsilon, release)
    text = (
        f"Each answer is {answers.epsilon}-differentially private ({_ANSWER_LAWS[answers.mechanism]}): another "
        f"outcome makes an answer at most e^{answers.epsilon} times as probable. The number of records is public, and "
        "the vendor chooses which candidates to query."
    )
    if answers.plays == "mean":
        text += " Several measurements of a candidate in one query are released once, as their mean: this holds for "
        text += "all of them." if answers_add_up(spec) else "each of them, as another person's."
    if not isinstance(spec.measurement, wire.ColumnMeasurement):
        text += " A corrected answer is released again, and its epsilon adds to that of the answer before it."
    if not answers_add_up(spec):
        return f"{text} Each answer is counted as another person's."
    cap = lowest_cap(spec)
    whose = "the records of one person" if spec.person_column else "one record"
    if release is not None:
        delta = getattr(release, "delta", None)
        most = cap if delta is None else f"({cap}, {delta!r})"
        added, to = f"Answers about {whose} add up, with the release", f", to {most} at most."
    else:  # public records use 0, and an unsound release has no bound
        added, to = f"Answers about {whose} add up", f" to {cap} at most."
    return f"{text} {added}{to}" if cap else f"{text} {added}: the study sets no cap on the sum."


def lowest_cap(spec: wire.StudyCreate) -> str | None:
    """The lowest cap on the epsilon of a record: what bounds the study bounds each record."""
    caps = [cap for cap in (spec.budget.epsilon_per_row, spec.budget.epsilon_total) if cap is not None]
    return min(caps, key=wire.amount, default=None)


def _of_groups(spec: wire.StudyCreate, epsilon: str, release: Concrete | None) -> str:
    """The promise about answers of groups. ``release``: None if that of the numbers of records is withdrawn."""
    whose = "The records of one person use" if spec.person_column else "A record uses"
    promise = (
        f"Each answer is the mean of a group's clipped outcomes with Laplace noise: {epsilon}-differentially private "
        f"for a change within the group, and half of that for a record that leaves or enters it. {whose} at most the "
        "epsilon of the group that was queried most, however many others were queried"
    )
    if (cap := lowest_cap(spec)) is None:
        return f"{promise}: the study sets no cap on it."
    added = "" if release is None else ", with the release,"
    return f"{promise}: at most {cap}{added} for replacing everything about it."


# --- what is not promised -------------------------------------------------------------------------


Applies = Callable[[wire.StudyCreate, Concrete], bool]


@dataclass(frozen=True, slots=True)
class Gap:
    """A property that is not protected, and the studies that it applies to."""

    heading: str
    says: str
    applies: Applies = lambda spec, release: True
    also: tuple[tuple[str, Applies], ...] = ()
    """More sentences, each with the studies that it applies to."""
    adds: Callable[[wire.StudyCreate], str] = lambda spec: ""
    """What a study's own numbers add to it."""

    def sentence(self, spec: wire.StudyCreate, release: Concrete) -> str:
        """The gap of a study with its heading."""
        more = "".join(f" {says}" for says, applies in self.also if applies(spec, release))
        return f"{self.heading}: {self.says}{more}{self.adds(spec)}"

    @property
    def whole(self) -> str:
        """All that the gap says of any study."""
        return " ".join((self.says, *(says for says, _ in self.also)))


def _is_sound(release: Concrete) -> bool:
    return not isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease)


def _of_groups_release(spec: wire.StudyCreate, release: Concrete) -> bool:
    return isinstance(release, wire.GroupsRelease)


GAPS: tuple[Gap, ...] = (
    Gap(
        "Features",
        "without a sound release the vendor receives the features as they are, or anyone who knows a few records can "
        "rebuild the others.",
        lambda spec, release: not _is_sound(release),
    ),
    Gap(
        "Changes larger than the hidden change",
        "a record whose features could differ by more than the hidden change, in scaled units, has weaker protection.",
        lambda spec, release: _is_sound(release) and not isinstance(release, wire.GroupsRelease),
    ),
    Gap(
        "Outcomes",
        "without an answer mechanism the vendor receives the exact outcome. Measurement noise gives no privacy.",
        lambda spec, release: isinstance(spec.answers, wire.NoAnswerNoise),
    ),
    Gap(
        "Answers about one record",
        "without a cap on epsilon per record they add up without a limit.",
        lambda spec, release: (
            not isinstance(spec.answers, wire.NoAnswerNoise)
            and answers_add_up(spec)
            and spec.budget.epsilon_per_row is None
            and spec.budget.epsilon_total is None
        ),
    ),
    Gap(
        "Answers about one person",
        "each is counted as another person's. If one person is behind several, their epsilons add up.",
        lambda spec, release: not isinstance(spec.answers, wire.NoAnswerNoise) and not answers_add_up(spec),
    ),
    Gap(
        "Second draws",
        "the smaller bound, of a record that was not queried, is about all that the vendor received. Anyone who hides "
        "which candidates were queried, and publishes something that was computed from all, can reveal more about such "
        "a record: then the larger bound holds, with the second draw. It also bounds what somebody concludes who takes "
        "another's second draw for this record's. Whether a person agrees to be measured is taken as given. Taking an "
        "answer back does not recall a second draw. Under one cap for everybody two draws are never better than one: "
        "they help because the other persons use less epsilon.",
        lambda spec, release: spec.refine is not None,
    ),
    Gap(
        "A person with several records",
        "the file does not say which records are one person's, so the guarantee is for a record. A person with k "
        "records uses k times the epsilon of a record.",
        lambda spec, release: _is_sound(release) and not spec.person_column,
        (
            (
                "The delta of such a person is k e^((k - 1) epsilon) times the delta of a record.",
                lambda spec, release: bool(failure(release)),
            ),
        ),
        lambda spec: _declared(spec),
    ),
    Gap(
        "Records of one person",
        "the release does not hide which records are the same person's, nor how many records each person has. A "
        "refusal at the cap on a person can reveal it to the vendor, and the epsilon by candidate to auditors.",
        lambda spec, release: spec.person_column,
    ),
    Gap(
        "Sizes",
        "the number of records, the shape of the release and the mechanism are public. If records with missing values "
        "were left out, or the owner saw the gaps of a file before choosing how to read it, the number of records and "
        "the choice depend on the gaps. So neighbours have the same gaps: the release does not hide that a value is "
        "missing, unreadable, or outside the list of categories.",
    ),
    Gap(
        "Queries",
        "the vendor chose the queries, so it knows which candidates were queried, how often and when.",
        also=(
            (
                (
                    "A refusal states what its own grant has used, and no amount of another. Whether a request is "
                    "refused depends on what all vendors of the study have used, so requests of several sizes show "
                    "how much the others have left."
                ),
                lambda spec, release: any(cap is not None for cap in spec.budget.model_dump().values()),
            ),
            (
                "With a cap on the dataset, refusals show which candidates of two studies are one record.",
                lambda spec, release: not is_groups(spec) and not isinstance(spec.answers, wire.NoAnswerNoise),
            ),
        ),
    ),
    Gap(
        "Timing",
        "the time of a reply can reveal a little.",
        also=(
            (
                "The curator replies when it is ready. A fixed reply time hides most of this.",
                lambda spec, release: spec.reply_after_ms is None,
            ),
            (
                "With a fixed reply time the vendor sees the period into which a reply falls, and nothing finer.",
                lambda spec, release: spec.reply_after_ms is not None,
            ),
        ),
    ),
    Gap(
        "Measuring",
        "the vendor sees how long a measurement takes, that a candidate was not measured, and that an answer was "
        "corrected or taken back. This can depend on the person behind the record.",
        lambda spec, release: not isinstance(spec.measurement, wire.ColumnMeasurement),
    ),
    Gap(
        "Decisions of the owner",
        "the vendor learns whether the owner accepts, rejects or measures a recommendation, decides on a request for "
        "budget, and the owner's message. If the owner looked at the record to decide, no epsilon counts that.",
    ),
    Gap(
        "Public inputs",
        "epsilon, delta, the hidden change, r, the mechanism, caps, bounds, scales, the kernel, lists of categories, "
        "values that fill gaps, and whether to release are taken as public. If the owner computed them from the "
        "records, or chose them by looking at the records, as in a preview or a forecast on the records, no guarantee "
        "holds.",
        also=(
            (
                (
                    "The same is true of the parts or centres that are declared for groups, their number and smallest "
                    "size."
                ),
                _of_groups_release,
            ),
        ),
    ),
    Gap(
        "Several studies of one dataset",
        "the account of a file adds up what its studies and tunings use of a record, also over files that continue it. "
        "Of files with the same people that the owner keeps apart nobody adds the accounts.",
        also=(
            (
                "A later study can have the same candidates. Vendors of both can then join their answers.",
                lambda spec, release: _is_sound(release) and spec.release_of is None,
            ),
        ),
    ),
    Gap(
        "Joined answers",
        "the candidates of this study are also those of another one, so vendors of both can join their answers about a "
        "record. The account of the file counts the release once and adds up the answers and second draws of both "
        "studies. The bound is for what the vendors know together.",
        lambda spec, release: spec.release_of is not None,
    ),
    Gap(
        "What holds for many",
        "what the records show about people in general is meant to be learned, and applies to each person too.",
    ),
    Gap(
        "Withdrawal of consent",
        "a vendor keeps what it received. The owner can withhold a record: from then on the curator declines it to "
        "vendors, who see that it was withheld or not measured, and leaves it out of later releases and grants.",
        also=(
            (
                "A candidate that was sent stays with the vendor, and the logs stay.",
                lambda spec, release: not isinstance(release, wire.GroupsRelease),
            ),
            (
                "If candidates are groups, the curator leaves the record out of their sums, and nothing shows that.",
                _of_groups_release,
            ),
        ),
    ),
    Gap(
        "Other readers",
        "the guarantee is about what the vendor receives, and so about everyone to whom the vendor passes it on. The "
        "curator's machine, people who can read its folder, and the owner see values without noise.",
        also=(
            (
                (
                    "Auditors read in the log that a release was abandoned or a forecast failed. With the published "
                    "mechanism this can show them that features are linearly dependent."
                ),
                lambda spec, release: isinstance(release, wire.PoGpUcbRelease),
            ),
        ),
    ),
)


def not_protected(spec: wire.StudyCreate, release: Concrete | None = None) -> list[str]:
    """The gaps of a study, in words for every party."""
    ran = release or concrete(spec)[0]
    return [gap.sentence(spec, ran) for gap in GAPS if gap.applies(spec, ran)]


def _declared(spec: wire.StudyCreate) -> str:
    """What a person with as many records as the owner declares uses by the release, if they are more than one."""
    k = spec.rows_per_person
    if k == 1 or not isinstance(spec.release, wire.SoundRelease):
        return ""
    return (
        f" The owner declares at most {k} records of a person, who uses by the release "
        f"{of_person(wire.amount(spec.release.epsilon), getattr(spec.release, 'delta', None), k)}."
    )


def of_person(epsilon: Decimal, delta: float | None, k: int) -> str:
    """What a person with ``k`` records uses if each record is promised (epsilon, delta), by group privacy."""
    if not delta:
        return f"epsilon {exact(k * epsilon)}"
    return f"epsilon {exact(k * epsilon)} with delta {group_delta(epsilon, Decimal(repr(delta)), k)}"


def of_bounds(epsilon: str, records: int, *, person: bool) -> str:
    unit = f"person, with up to {records} records" if person else "record"
    replaced = "the records of one person by any others" if person else "one record by any other"
    return (
        f"{epsilon}-differential privacy of each {unit}, without a delta: replacing {replaced} makes no "
        f"quantiles more than e^{epsilon} times as probable. The number of records is public, and so is what was "
        "requested: columns, outer ranges, quantiles and epsilon."
    )


RIGHT = 0.75
"""How often the best guess between two values may be right for them to count as confused: three times in four."""


def surest(epsilon: Decimal) -> float:
    """The largest belief in one of two values that differ by Delta, of someone who began with 1/2; no delta counted.

    Bayes: the odds change by the ratio of two likelihoods, at most e^epsilon.
    """
    return 1 / (1 + exp(-float(epsilon)))


def confused_within(law: wire.NoiseLaw, d: int, rows: int = 1) -> float | None:
    """The largest change, in scaled units, between whose two values no guess is right more often than 3 times in 4.

    Of someone who began with 1/2, about a record of ``d`` features, or about ``rows`` records of one person that all
    change so. The best guess is right with probability (1 + T) / 2, with T the total variation of the two laws of Z: of
    Gaussian noise exactly Phi(sqrt(rows) v / (2 sd)); of planar Laplace noise, which is a-private with its slope
    a = sqrt(d + 1) / sd, at most e^(rows a v) / (1 + e^(rows a v)); Laplace noise in each coordinate has a =
    sqrt(2) / sd for a change of one feature. None for other noise.
    """
    if law.sd is None or law.family not in ("gaussian", "planar_laplace", "laplace_each"):
        return None
    d = 1 if law.family == "laplace_each" else d
    if law.family == "gaussian":
        return 2 * law.sd * NormalDist().inv_cdf(RIGHT) / sqrt(rows)
    return log(RIGHT / (1 - RIGHT)) * law.sd / (sqrt(d + 1) * rows)
