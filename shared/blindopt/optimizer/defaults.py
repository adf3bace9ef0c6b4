"""The plan of a run: the settings that were left open, chosen from the study, with reasons in words.

One pure function. Its result is stored with a run, so that later versions of the defaults change no old run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.input_noise import declared_noise
from blindopt.optimizer.algorithms.bandits.few_arms import ARMS_MAX
from blindopt.optimizer.algorithms.gp.ei_deblurred import OUTCOMES_MAX
from blindopt.optimizer.algorithms.gp.surrogate import has_own_lengthscales
from blindopt.wire.answer import NONE
from blindopt.wire.goal import BEST
from blindopt.wire.run import FITTED, NEWEST, Engine


def exact_answers(study: object) -> bool:
    """Whether each answer is the value of a column of the dataset, with no noise added to it.

    What other candidates do not explain of such a value is the record's own: a nugget, and no noise. Candidates without
    a study do not say where their outcomes come from, so these count as noisy.
    """
    return (
        isinstance(study, wire.StudyView)
        and study.measurement_source == "column"
        and study.measurement_noise_variance == 0
        and study.answers.mechanism == "none"
    )


def group_answers(study: object) -> bool:
    """Whether each answer is a private mean over a group of records: with noise of a known law, and no other."""
    return isinstance(study, wire.StudyView) and study.mechanism == "groups"


def own_residual(study: object) -> bool:
    """Whether what other candidates do not explain of an answer, beyond its declared noise, is the candidate's own.

    It is then a nugget, part of f, and a recommendation counts it (benchmarks/papers/results, "Groups of records").
    """
    return exact_answers(study) or group_answers(study)


INITIAL_ROWS = 5

NO_KERNEL = "Hyper-parameters are fitted to the answers: no kernel is given."
GIVEN_KERNEL = "The given kernel is used as long as it fits the answers; then hyper-parameters are fitted to them."
ONE_LENGTHSCALE = (
    "All columns share one length-scale, each divided by its standard deviation: for length-scales of their own there "
    "are too many."
)
BY_DISTANCE = "The length-scale follows from the distances between candidates: no kernel is given."
FIRST_ROWS: dict[wire.InitialDesign, str] = {
    "maximin": " spread over the release",
    "mixed": ", half of them spread over the release and half random,",
    "random": "",
}
AGAIN: dict[wire.PlannedRepeats, str] = {
    "algorithm": "A candidate may be queried again at any time",
    "never": "No candidate is queried twice",
    "after_all": "A candidate is queried again only after every candidate was queried",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCandidates:
    """Candidates (n, r) without a study, with the fields of a study that choices depend on."""

    n: int
    r: int
    direction: Literal["maximize", "minimize"]
    kernel: wire.Kernel | None
    noise: wire.NoiseLaw
    answers: wire.Answers = NONE
    privacy_unit: Literal["row", "answer"] = "row"
    refine: wire.RefineView | None = None
    goal: wire.Goal = BEST


Study = wire.StudyView | PublicCandidates
"""What choices depend on besides the candidates."""


def plan_for(
    spec: wire.RunSpec,
    study: Study,
    past: int = 0,
    *,
    own_variances: bool = False,
    engine: Engine = NEWEST,
) -> wire.Plan:
    """Return the settings as they were given, and those left open as they follow from the study.

    ``past`` is the number of measurements from before the run; ``own_variances``: whether measurements state noise
    variances of their own; ``engine`` is the version of the rules, 1 for a run from before there were plans. Raises
    Invalid for settings that no algorithm for the study has.
    """
    reasons: list[str] = []
    algorithm, kernel, goal = spec.algorithm, spec.kernel or study.kernel, spec.goal or study.goal
    if problem := spec.stop.problem(goal):
        raise Invalid(problem)
    if isinstance(algorithm, wire.Auto):
        answers = study.answers if engine < 3 else wire.concrete_answers(study.answers)
        algorithm, why = _algorithm(spec, study, answers, past, own_variances, engine)
        reasons.append(f"The algorithm is {algorithm.name}: {why}.")
    if (fit := spec.fit) == "auto":
        fit = None
        if isinstance(algorithm, FITTED):
            fit = wire.Fit() if kernel is None else "auto"
            reasons.append(NO_KERNEL if kernel is None else GIVEN_KERNEL)
    shares = isinstance(fit, wire.Fit) and fit.ard == "auto" and study.noise.family == "none" and study.r > 1
    if engine > 2 and shares and not has_own_lengthscales(study.n, study.r, study.noise, engine):
        reasons.append(ONE_LENGTHSCALE)
    if kernel is None and isinstance(algorithm, wire.FewArmsSpec):
        reasons.append(BY_DISTANCE)
    rows, design = spec.initial_rows, spec.initial_design
    if design is None:
        # Noise moves some records to the edge of a release: the rows that are farthest apart are often those.
        design = "mixed" if engine > 2 and declared_noise(study.noise) is not None else "maximin"
        if isinstance(algorithm, wire.RandomRows):
            design = "random"
    if rows is None:
        rows, why = _initial_rows(algorithm, spec, study, past, engine)
        reasons.append(f"{rows} candidates{FIRST_ROWS[design]} are queried first: {why}.")
    if (repeats := spec.repeats) == "auto":
        repeats, why = _repeats(algorithm, study, goal)
        reasons.append(f"{AGAIN[repeats]}: {why}.")
    return wire.Plan(
        algorithm=algorithm,
        fit=fit,
        initial_rows=rows,
        initial_design=design,
        repeats=repeats,
        reasons=reasons,
        engine=engine,
        answers_per_row=None if engine == 1 else answers_per_row(study),
        goal=goal,
    )


def plan_of_run(
    spec: wire.RunSpec, study: Study, past: Sequence[wire.Observation], *, engine: Engine = NEWEST
) -> wire.Plan:
    """Return the plan of a run that begins with ``past``; the rest is as in ``plan_for``."""
    own_variances = any(observation.noise_variance is not None for observation in past)
    return plan_for(spec, study, len(past), own_variances=own_variances, engine=engine)


# --- the algorithm --------------------------------------------------------------------------------


def _algorithm(
    spec: wire.RunSpec, study: Study, answers: wire.Answers, past: int, own_variances: bool, engine: Engine
) -> tuple[wire.AlgorithmSpec, str]:
    if isinstance(spec.goal or study.goal, wire.FindMany):
        return _open(spec, study, past, engine), "the goal is as many good candidates as possible"
    promised = spec.stop.improvement is not None
    if not (is_private := _is_private(study)) or study.n > ARMS_MAX:
        if promised:
            why = "the run is to end by a promise (stop.improvement), which its upper bounds make"
            return wire.GpBucb(name="gp_bucb") if spec.batch_size > 1 else wire.GpUcb(name="gp_ucb"), why
        kind = f"are randomized, and candidates are more than {ARMS_MAX:,}" if is_private else "are not randomized"
        algorithm = _open(spec, study, past, engine)
        noisy = ""
        if isinstance(algorithm, wire.EiDeblurred):
            besides = "no kernel is given" if study.refine is None else "queried ones come again, less blurred"
            noisy = f", candidates have noise of a known law, and {besides}"
        return algorithm, f"answers {kind}{noisy}"
    if promised:
        raise Invalid(
            "stop.improvement is for gp_ucb and gp_bucb, which auto does not choose for randomized answers about few "
            "candidates: leave it out, or name the algorithm"
        )
    if group_answers(study):
        return _open(spec, study, past, engine), "answers are private means of groups, each with noise of its own size"
    if study.refine is not None:
        return _open(spec, study, past, engine), "queried candidates come again, less blurred, and it takes both draws"
    if spec.stop.expected_improvement is not None:
        return _open(spec, study, past, engine), "the run is to end by a rule of it (stop.expected_improvement)"
    if isinstance(spec.fit, wire.Fit):
        return _open(spec, study, past, engine), "hyper-parameters are to be fitted"
    if own_variances:
        return _open(spec, study, past, engine), "past measurements have noise variances of their own"
    why = f"answers have {answers.mechanism.replace('_', '-')} noise, and candidates are at most {ARMS_MAX:,}"
    if isinstance(answers, wire.LaplaceAnswers):
        return wire.LaplaceAdf(name="laplace_adf"), why
    if isinstance(answers, wire.OneBitAnswers | wire.PiecewiseAnswers):
        return wire.BoundedIgp(name="bounded_igp"), why
    return wire.Thompson(name="thompson"), why


def _open(spec: wire.RunSpec, study: Study, past: int, engine: Engine) -> wire.AlgorithmSpec:
    """The algorithm where answers are not randomized, or the candidates many; also in batches.

    benchmarks/papers/results: with noisy candidates ``ei_deblurred`` has the smallest worst case if the kernel is
    fitted, and ``ei`` the smaller regret if it is given; where queried candidates come again, less blurred, it has the
    smaller regret with a given kernel too (benchmarks/results/refine.md).
    """
    averages = study.refine is not None or (spec.kernel is None and study.kernel is None)
    if averages and spec.batch_size == 1 and not _is_private(study) and declared_noise(study.noise) is not None:
        first = spec.initial_rows if spec.initial_rows is not None else _usual_rows(study.r, engine)
        if past + first + spec.iterations_after(first) <= OUTCOMES_MAX:
            return wire.EiDeblurred(name="ei_deblurred")
    is_many = isinstance(spec.goal or study.goal, wire.FindMany)
    return wire.Reach(name="reach") if is_many else wire.Ei(name="ei")


def _is_private(study: Study) -> bool:
    return not isinstance(study.answers, wire.NoAnswerNoise)


# --- the initial design ---------------------------------------------------------------------------


def _usual_rows(r: int, engine: Engine) -> int:
    return INITIAL_ROWS if engine > 2 else max(INITIAL_ROWS, 2 * r)


def _initial_rows(
    algorithm: wire.AlgorithmSpec, spec: wire.RunSpec, study: Study, past: int, engine: Engine
) -> tuple[int, str]:
    if isinstance(algorithm, wire.LdpMoma | wire.Moma):
        return 0, "the algorithm learns nothing from them"
    count = _usual_rows(study.r, engine)
    why = (
        "enough for a first fit, whatever the number of columns"
        if count == INITIAL_ROWS
        else f"twice the {study.r} columns of the release"
    )
    if past:
        count, why = max(0, count - past), f"{why} ({count}), less the {past} past measurements"
    most, words = spec.iterations, "as many as are queried after them"
    if spec.queries is not None:
        most, words = spec.queries // 2, "half of the queries"
    limits = {
        most: words,
        study.n // 2: f"half of the {study.n} candidates",
        _allowed(study) // 2: "half of the measurements that the study's budget allows",
    }
    least = min(limits)
    return (least, limits[least]) if least < count else (count, why)


_NO_CAP = 10**15


def _allowed(study: Study) -> int:
    """The most measurements that the caps of the study allow, if nothing is spent but the release."""
    if not isinstance(study, wire.StudyView):
        return _NO_CAP
    by_epsilon = inf
    if study.budget.epsilon_total is not None and isinstance(study.answers, wire.PrivateAnswers):
        remaining = wire.amount(study.budget.epsilon_total) - wire.amount(study.epsilon or "0")
        by_epsilon = max(0.0, float(remaining / wire.amount(study.answers.epsilon)))
    return int(min(study.budget.queries or _NO_CAP, by_epsilon, _NO_CAP))


# --- repeats --------------------------------------------------------------------------------------


def _repeats(algorithm: wire.AlgorithmSpec, study: Study, goal: wire.Goal) -> tuple[wire.PlannedRepeats, str]:
    if isinstance(algorithm, wire.LdpMoma | wire.Moma):
        return "algorithm", "each epoch measures one candidate several times"
    if isinstance(goal, wire.FindMany):
        return "never", "the goal is many different candidates"
    if isinstance(study.answers, wire.NoAnswerNoise):
        if exact_answers(study):
            return "never", "an answer is the exact value of a column, so a second answer would be the same"
        return "after_all", "another candidate teaches more than a second measurement of the same one"
    if study.privacy_unit == "row":
        why = "answers about one record add up in its privacy budget"
        allowed = answers_per_row(study)
        is_one = allowed is not None and allowed < 2
        return ("never", f"{why}, which allows one each") if is_one else ("after_all", why)
    view = study if isinstance(study, wire.StudyView) else None
    if view is not None and view.measurement_source == "column" and view.budget.epsilon_per_row is not None:
        return "after_all", "one value is behind all answers about a record, and they add up under its cap"
    return "algorithm", "each answer is a new draw, so a repeat teaches something"


def answers_per_row(study: Study) -> int | None:
    """The most answers about one record that its cap allows beside the release; None where no cap counts them.

    All of it is public: the cap, what the release cost, and what an answer costs.
    """
    if not isinstance(study, wire.StudyView) or not isinstance(study.answers, wire.PrivateAnswers):
        return None
    cap, adds_up = study.budget.epsilon_per_row, study.privacy_unit == "row" or study.measurement_source == "column"
    if cap is None or not adds_up:
        return None
    remaining = wire.amount(cap) - wire.amount(study.epsilon or "0")
    return max(1, int(remaining // wire.amount(study.answers.epsilon)))
