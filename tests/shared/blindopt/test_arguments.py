"""A public function does what its docstring says, or raises a BlindoptError: 40 kinds of values for each argument."""

import datetime
import decimal
import fractions
import inspect
import json
import math
import pickle
import warnings

import httpx
import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client.connection import Client
from blindopt.client.measurer import Item
from blindopt.client.owner import Dataset, Draft, Grant, Message, ReleasedStudy

Z = np.linspace(0.0, 1.0, 21)[:, None]
COLUMNS = [wire.Column.model_construct(name=name) for name in ("a", "y")]
HOLDS_ITSELF: list = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
KINDS = {
    "none": None,
    "flag": True,
    "zero": 0,
    "negative": -1,
    "whole": 5,
    "many digits": 10**400,
    "real": 0.5,
    "nan": math.nan,
    "infinite": math.inf,
    "largest": 1.7e308,
    "complex": 1 + 2j,
    "decimal": decimal.Decimal("0.3"),
    "signalling": decimal.Decimal("sNaN"),
    "fraction": fractions.Fraction(1, 3),
    "numpy whole": np.int64(3),
    "numpy real": np.float32(0.5),
    "numpy flag": np.bool_(True),
    "empty": "",
    "word": "minimize",
    "half a sign": "\ud800",
    "null character": "a\0b",
    "climbing": "../x",
    "path": "/nonexistent/x",
    "bytes": b"x",
    "no items": [],
    "numbers": [1, 2, 3],
    "holds itself": HOLDS_ITSELF,
    "no fields": {},
    "fields": {"a": 1},
    "set": {1, 2},
    "array": np.zeros((3, 2)),
    "complex array": np.array([[1j]]),
    "objects": np.array([None, {}], dtype=object),
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
    "time": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "object": object(),
    "function": len,
    "type": int,
    "generator": (number for number in ()),
    "model": wire.NoiseLaw(family="none"),
}
TRIALS = 7
DATASET, STUDY = f"ds_{'0' * 16}", f"std_{'0' * 16}"


def faults_of(call, arguments):
    """The values that end a call in an error that is not of the library, each argument in turn."""
    faults = {}
    for name in arguments:
        for kind, value in KINDS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    call(**{**arguments, name: value})
                except bo.BlindoptError:
                    pass
                except Exception as error:  # what this is about
                    faults[f"{name} = {kind}"] = repr(error)
    return faults


def called(method, **more):
    """A method with names for its positional arguments, and an end of what it generates; and its arguments."""
    parameters = inspect.signature(method).parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]

    def call(**options):
        result = method(*[options.pop(name) for name in positional if name in options], **options)
        if inspect.isgenerator(result):
            list(result)

    single = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    samples = {"dataset_id": DATASET, "study_id": STUDY} | more
    return call, {p.name: samples.get(p.name, "x_0") if p.default is p.empty else p.default for p in single}


@pytest.fixture
def nowhere(monkeypatch):
    """Services that know nothing: every request that is sent gets 404."""
    fields = {"type": "x", "title": "t", "status": 404, "detail": "d", "instance": "/", "code": "not_found"}
    body = json.dumps(fields | {"retryable": False, "request_id": "r"}).encode()
    headers = {"content-type": "application/problem+json"}
    transport = httpx.MockTransport(lambda _: httpx.Response(404, stream=httpx.ByteStream(body), headers=headers))
    monkeypatch.setattr(Client, "_transport", transport)


def optimizer(candidates=Z, **settings):
    return bo.Optimizer(candidates, **({"seed": 1, "iterations": 10} | settings))


@pytest.fixture(scope="module")
def searched():
    search = optimizer()
    for _ in range(TRIALS):
        i = search.ask()
        search.tell(i, -((i / 20 - 0.3) ** 2))
    return search


def test_an_optimizer_is_made_or_says_what_is_wrong():
    _, arguments = called(bo.Optimizer, candidates=Z)
    more = dict.fromkeys(("initial_rows", "stop", "batch_size", "fit", "repeats", "initial_design"))
    assert faults_of(optimizer, arguments | {"seed": 1, "iterations": 10}) == {}
    for name in (*more, "unknown"):
        assert faults_of(optimizer, {name: KINDS["whole"]}) == {}


def test_reports_and_results_of_an_optimizer(searched):
    def tell(i=3, y=1.0, **noise):
        made = optimizer()
        made.tell(i, y, **noise)
        made.ask()

    assert faults_of(tell, {"i": 3, "y": 1.0}) == {}
    assert faults_of(tell, {"variance": 0.5}) == {}
    assert faults_of(tell, {"passport": None}) == {}
    assert faults_of(lambda i: optimizer().decline(i), {"i": 3}) == {}
    assert faults_of(searched.recommendation, {"over": "asked"}) == {}
    assert faults_of(searched.posterior, {"rows": None}) == {}


@pytest.mark.parametrize("kind", [bo.Owner, bo.Vendor, bo.Measurer], ids=lambda kind: kind.__name__)
def test_a_client_and_all_its_methods(nowhere, kind):
    """404 for what is sent; a key, an id, a request or seconds of another kind is not."""
    call, arguments = called(kind, url="http://127.0.0.1:1", token="t")
    assert faults_of(call, arguments | {"patience_s": 0.0}) == {}
    client = kind("http://127.0.0.1:1", "t", patience_s=0.0)
    methods = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    assert len(methods) > 10
    faults = {name: faults_of(*called(getattr(client, name))) for name in methods if name not in ("close", "cut")}
    assert {name: faulty for name, faulty in faults.items() if faulty} == {}


def test_objects_of_an_owner_and_a_measurer(nowhere, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a file has the name of each text that can be one
    owner = bo.Owner("http://127.0.0.1:1", "t", patience_s=0.0)
    dataset = Dataset(owner, wire.DatasetView.model_construct(id=DATASET, name="n", columns=COLUMNS))
    spec = wire.StudyCreate.model_construct(budget=wire.Budget())
    draft = Draft(owner, wire.StudyOwnerView.model_construct(id=STUDY, spec_sha256="0" * 64, spec=spec))
    study = ReleasedStudy(owner, STUDY)
    call, arguments = called(dataset.study, features={"a": (0, 1)}, outcome="y", privacy=1, answers="exact")
    assert faults_of(call, arguments) == {}
    assert faults_of(draft.forecast, {"epsilons": (1,), "seeds": 2}) == {}
    assert faults_of(draft.release, {"confirm_high_risk": False}) == {}
    for method in (study.grant, study.open_record, study.open_group):
        assert faults_of(*called(method)) == {}
    message = Message(study, wire.MessageView.model_construct(id="msg_0"))
    assert faults_of(message.decide, {"decision": "accepted", "word": None}) == {}
    item = Item(bo.Measurer("http://127.0.0.1:1", "t"), wire.InboxItem.model_construct(
        id=f"msr_{'0' * 16}", query_id="qry_0", record=1, question="q", shown=[]
    ))  # fmt: skip
    assert faults_of(item.answer, {"value": 1.0, "note": None}) == {}
    assert faults_of(item.decline, {"reason": "other", "note": None}) == {}
    grant = Grant.__new__(Grant)
    grant.file = wire.GrantFile.model_construct(format="x")
    assert faults_of(grant.save, {"path": tmp_path}) == {}


@pytest.mark.parametrize("owner", [bo.Owner, bo.Vendor, bo.Study, bo.Optimizer, Dataset, Draft, ReleasedStudy])
def test_the_signature_of_each_public_method_can_be_read(owner):
    names = [name for name in vars(owner) if name == "__init__" or not name.startswith("_")]
    methods = [getattr(owner, name) for name in names if callable(getattr(owner, name))]
    assert methods
    for method in methods:
        assert len(str(inspect.signature(method))) <= 280, method


def test_files_of_logs_grants_and_studies():
    assert faults_of(*called(bo.verify_log, path="/nonexistent")) == {}
    assert faults_of(*called(bo.reconcile, first="/nonexistent", second="/nonexistent")) == {}
    arguments = {"grant": "/nonexistent", "url": None, "patience_s": 0.0, "plain_http": False}
    assert faults_of(lambda **options: bo.Study.from_grant(log="/nonexistent/x", **options), arguments) == {}


@pytest.mark.parametrize("kernel", [bo.Matern12, bo.Matern32, bo.Matern52, bo.SquaredExponential])
def test_kernels(kernel):
    assert faults_of(kernel, {"lengthscale": 1.0, "variance": 1.0}) == {}
    assert faults_of(lambda a, b: kernel(1.0)(a, b), {"a": Z, "b": Z}) == {}


def test_a_posterior():
    def made(**options):
        return bo.Posterior(**{"candidates": Z, "kernel": bo.Matern52(1.0), "noise_variance": 0.1} | options)

    _, arguments = called(bo.Posterior, candidates=Z, kernel=bo.Matern52(1.0), noise_variance=0.1, capacity=5)
    assert faults_of(lambda **options: made(**options).observe(0, 1.0), arguments) == {}
    rows = np.array([0, 1])
    for name, options in {
        "observe": {"row": 1, "outcome": 1.0, "noise_variance": None},
        "suppose": {"row": 1, "noise_variance": None},
        "retract": {"count": 0},
        "moments": {"rows": rows},
        "solve": {"rows": rows},
        "best": {"rows": rows, "weight": 0.0},
        "improvement": {"optimism": 0.0},
    }.items():
        posterior = made(capacity=5)
        posterior.observe(0, 1.0)
        assert faults_of(getattr(posterior, name), options) == {}, name


def test_without_the_checks_errors_of_python_come_out(nowhere):
    """The control: the same battery over a function whose check is taken out."""
    bare = bo.Owner.__init__.__wrapped__
    faults = faults_of(lambda url: bare(object.__new__(bo.Owner), url, "t"), {"url": "http://127.0.0.1:1"})
    assert {"url = whole", "url = none", "url = array"} <= faults.keys()
    assert faults_of(lambda maximize: bo.Optimizer.__init__.__wrapped__(
        object.__new__(bo.Optimizer), Z, maximize=maximize
    ), {"maximize": True}).keys() == {"maximize = array", "maximize = masked", "maximize = objects"}  # fmt: skip


# --- what is taken, and as what ---------------------------------------------------------------------


def rows_of(search, count=6):
    rows = []
    for _ in range(count):
        rows.append(search.ask())
        search.tell(rows[-1], float(np.sin(rows[-1])))
    return rows


@pytest.mark.parametrize("word", ["minimize", "maximize", None, 1, 0, "False"])
def test_a_direction_is_a_flag(word):
    """Found outside: maximize="minimize" maximized, and None minimized."""
    with pytest.raises(bo.Invalid, match="maximize must be True or False"):
        optimizer(maximize=word)
    assert rows_of(optimizer(maximize=np.bool_(False))) == rows_of(optimizer(maximize=False))


def test_numbers_of_numpy_are_numbers():
    chosen = np.random.default_rng(1).integers(3, 9, size=3)
    settings = dict(zip(("seed", "iterations", "initial_rows"), chosen, strict=True))
    assert rows_of(optimizer(**settings)) == rows_of(optimizer(**{k: int(v) for k, v in settings.items()}))
    for name in settings:
        with pytest.raises(bo.Invalid, match=name):
            optimizer(**{name: True})


def test_an_outcome_may_be_any_object_that_is_one_number():
    class Quantity:
        def __init__(self, value):
            self.value = value

        def __float__(self):
            return 1.0 / self.value

    search = optimizer()
    search.tell(search.ask(), Quantity(4))
    assert search.history[0].y == 0.25
    for wrong in (Quantity(0), np.array([1.5]), "1.5", True, 1j, [1.5]):
        with pytest.raises(bo.Invalid, match="y must be a finite number"):
            search.tell(search.ask(), wrong)


@pytest.mark.parametrize("text", ["0.3", "0.000001", "12.500000000001", "1000"])
def test_an_epsilon_is_exact_as_a_decimal_and_no_flag(nowhere, text):
    sent = []
    owner = bo.Owner("http://127.0.0.1:1", "t")
    owner.create_study = lambda study: sent.append(study) or wire.StudyOwnerView.model_construct(id=STUDY)
    dataset = Dataset(owner, wire.DatasetView.model_construct(id=DATASET, columns=COLUMNS))
    fields = {"features": {"a": (0, 1)}, "outcome": "y", "answers": "exact"}
    dataset.study("n", privacy=decimal.Decimal(text), **fields)
    assert sent[0].release.epsilon == text
    for wrong in (True, "1/3", "0,3", "1e-3", "1001", "0.0000001"):
        with pytest.raises(bo.Invalid, match="privacy"):
            dataset.study("n", privacy=wrong, **fields)
    with pytest.raises(bo.Invalid, match=r"a number from 0\.000001 to 1000, with at most 12 decimals"):
        dataset.study("n", privacy="1/3", **fields)


def test_an_optimizer_that_was_pickled_goes_on_as_it_would_have(searched):
    again = pickle.loads(pickle.dumps(searched))
    other = optimizer()
    for row, y, *_ in searched.history:
        other.ask()
        other.tell(row, y)
    assert rows_of(again, 3) == rows_of(other, 3)


def test_a_passport_and_a_law_of_noise_may_be_fields():
    passport = wire.NoisePassport(measurement_variance=0.04)
    search, other = optimizer(), optimizer()
    for report, made in ((search, passport), (other, passport.model_dump())):
        report.tell(report.ask(), 1.0, passport=made)
    assert search.history == other.history
    law = wire.NoiseLaw(family="none")
    assert optimizer(noise=law.model_dump()).plan == optimizer(noise=law).plan
    with pytest.raises(bo.Invalid, match="measurement_variance"):
        other.tell(other.ask(), 1.0, passport={"measurement_varianse": 1.0})


@pytest.mark.parametrize("y", [1.7e308, -1.7e308, np.float64(1e306)])
def test_an_outcome_beyond_the_range_is_refused_with_the_range(y):
    search = optimizer()
    with pytest.raises(bo.Invalid, match=r"from -1e\+305 to 1e\+305"):
        search.tell(search.ask(), y)
    assert search.history == []


@pytest.mark.parametrize("size", [1e-300, 1e-50, 1.0, 1e50, 1e305])
def test_searches_in_the_whole_range_of_outcomes_end(size):
    search = optimizer(iterations=8)
    while (proposal := search.propose()) is not None:
        search.tell(proposal.row, size * float(np.cos(proposal.row)))
    assert math.isfinite(search.recommendation().mean)


@pytest.mark.parametrize(
    ("candidates", "what"),
    [
        (np.array([[1j], [2.0]]), "complex"),
        (np.ma.masked_array([[1.0], [2.0]], [[True], [False]]), "masked"),
        (np.array([["2026-01-01"], ["2026-01-02"]], dtype="datetime64[D]"), "dates"),
        (np.array([[2**53 + 1], [2**53 + 2]]), "beyond 2"),
        ([[object()], [object()]], "neither numbers nor text"),
        ([[10**400], [1]], "finite"),
    ],
)
def test_what_a_conversion_of_candidates_would_drop_is_refused(candidates, what):
    with pytest.raises(bo.BlindoptError, match=what):
        optimizer(candidates)
