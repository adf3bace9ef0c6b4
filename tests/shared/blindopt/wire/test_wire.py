"""What crosses between the parties is strict: one form, finite, nothing unknown, no secret in a repr."""

import ast
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from blindopt import wire
from blindopt.wire.answer import PrivateAnswers

SECRET = "blindopt_0123456789abcdef.K3yWhichNobodyMayEverSeeInAnyTextAtAll1234567"
FEATURE = {"column": "age", "lower": 0.0, "upper": 120.0}
KERNEL = {"lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 0.01}
GAUSSIAN = {"mechanism": "gaussian", "epsilon": "1", "delta": 1e-5}
PUBLISHED = {**GAUSSIAN, "mechanism": "po_gp_ucb", "r": 2, "acknowledge_refuted": True}
STUDY = {
    "name": "s",
    "dataset_id": "dst_1",
    "features": [FEATURE],
    "measurement": {"column": "y", "direction": "maximize"},
    "release": GAUSSIAN,
    "answers": {"mechanism": "none"},
    "kernel": KERNEL,
}
INBOX = {"source": "inbox", "question": "How much?", "direction": "maximize", "lower": 0.0, "due_hours": 24}
MEASURED = {"measurement_id": "msr_0123456789abcdef", "value": 1.5}
AUTO = {"mechanism": "auto", "epsilon": "1", "delta": 1e-5, "sensitivity": 2.0, "rotate": True}
PLANAR = {"mechanism": "planar_laplace", "epsilon": "1"}
PROJECTION = {**GAUSSIAN, "mechanism": "gaussian_projection", "r": 2}
LAPLACE = {"mechanism": "laplace", "epsilon": "0.5", "value_bound": 1.0}
ONE_BIT = {**LAPLACE, "mechanism": "one_bit", "plays": "mean"}
PIECEWISE = {**LAPLACE, "mechanism": "piecewise", "centre": -7.5}
AUTO_ANSWERS = {**LAPLACE, "mechanism": "auto"}
HEAVY = {"alpha": 0.5, "value_bound": 4.0, "noise_moment": 2.0}
RUN = {"curator_url": "http://curator:8000", "study_id": "std_0123456789abcdef", "token": SECRET}
PRIOR = {"lengthscale": 0.2, "one_minus_k1": 1e-4}
PAST = {"row": 3, "y": 0.5}
ACCESS = {"curator_url": "https://curator.example", "study_id": "std_0123456789abcdef", "token": SECRET}
LINK_REPLY = {"request": "0" * 32, "part": 0, "last": True, "status": 200, "headers": {"etag": "a"}}
LINK_FILE = {
    "format": "blindopt-link-1",
    "id": f"usr_{'0' * 16}",
    "name": "hospital",
    "url": "https://modeler.example",
    "token": "blindopt_0",
    "ca": None,
    "cert": None,
    "key": None,
}
GRANT_FILE = ACCESS | {
    "format": "blindopt-grant-1",
    "log_key": "curator+00000000+AQ==",
    "name": "Vera",
    "expires_at": "2027-01-02T03:04:05Z",
}
AXIS = {"name": "lambda", "values": [0.1, 1.0], "scale": "log10"}
GROUPS = {"mechanism": "groups", "epsilon": "0.25", "cells": {"kind": "grid", "parts": [20, 20]}, "min_count": 9}
LOGISTIC = {
    "kind": "logistic",
    "training_dataset_id": "ds_0",
    "features": [{"column": "age", "lower": 0.0, "upper": 1.0}],
    "label": "ill",
}
TUNING = {
    "name": "t",
    "grid": [AXIS],
    "score": LOGISTIC,
    "validation_dataset_id": "ds_1",
    "budget": {"epsilon": "1"},
    "caps": {"epsilon": "3"},
}
GOOD_ROW = {"row": 3, "mean": 1.5, "probability": 0.9, "queried": True}
REQUESTS = [
    (wire.Feature, FEATURE),
    (wire.Kernel, KERNEL),
    (wire.ColumnMeasurement, STUDY["measurement"]),
    (wire.InboxMeasurement, INBOX),
    (wire.WebhookMeasurement, {"source": "webhook", "direction": "minimize", "unit": "mg", "shown": ["age"]}),
    (wire.StudyCreate, STUDY | {"measurement": INBOX}),
    (wire.StudyChange, STUDY | {"replaces": "0" * 64}),
    (wire.Processing, {"purpose": "care", "responsible": "Ann"}),
    (wire.ReleaseAsked, {"spec_sha256": "a" * 64}),
    (wire.Measured, MEASURED),
    (wire.AnswerCreate, {"values": [MEASURED], "note": "line one\nline two"}),
    (wire.CorrectCreate, {"values": [MEASURED], "note": "n"}),
    (wire.CorrectCreate, {"void": [MEASURED["measurement_id"]], "reason": "record"}),
    (wire.DeclineCreate, {"reason": "consent", "measurement_ids": [MEASURED["measurement_id"]]}),
    (wire.IdentityRelease, {"mechanism": "identity"}),
    (wire.GridCells, {"kind": "grid", "parts": [20, 20]}),
    (wire.CentreCells, {"kind": "centres", "centres": [[0.5, 1.5]]}),
    (wire.PrivateCells, {"kind": "private", "number": 50, "epsilon": "0.2"}),
    (wire.GroupsRelease, GROUPS),
    (wire.GaussianRelease, GAUSSIAN),
    (wire.PoGpUcbRelease, PUBLISHED),
    (wire.AutoRelease, AUTO),
    (wire.PlanarLaplaceRelease, PLANAR),
    (wire.GaussianProjectionRelease, PROJECTION),
    (wire.AxesRelease, {**GAUSSIAN, "mechanism": "axes", "axes": "private", "radius": 2.5, "r": None}),
    (wire.NoAnswerNoise, {"mechanism": "none"}),
    (wire.LaplaceAnswers, LAPLACE),
    (wire.OneBitAnswers, ONE_BIT),
    (wire.PiecewiseAnswers, PIECEWISE),
    (wire.AutoAnswers, AUTO_ANSWERS),
    (wire.StudyCreate, STUDY | {"answers": AUTO_ANSWERS, "reply_after_ms": 50}),
    (
        wire.ForecastCreate,
        {"epsilons": ["1", "2"], "mechanisms": ["auto", "identity"], "functions": 5, "rows_max": 100},
    ),
    (wire.Budget, {"epsilon_per_row": "1.5", "epsilon_total": "2", "queries": 9}),
    (wire.StudyCreate, STUDY),
    (wire.StudyCreate, STUDY | {"answers": LAPLACE, "privacy_unit": "answer", "budget": {"epsilon_total": "10"}}),
    (wire.Rotation, {"expires_in_days": 3}),
    (wire.LogQuota, {"bytes_per_day": 1 << 20}),
    (wire.WithholdCreate, {"record": 3}),
    (wire.DatasetCaps, {"epsilon": "3", "delta": None}),
    (wire.RecommendationMessage, {"kind": "recommendation", "row": 3, "mean": 1.5, "interval": [1.0, 2.0]}),
    (wire.LogQuota, {"bytes_per_day": None}),
    (wire.FindBest, {"kind": "best"}),
    (wire.FindMany, {"kind": "many", "threshold": 0.3}),
    (wire.Refine, {"epsilon": "3", "persons": 50}),
    (wire.GoodRow, GOOD_ROW),
    (wire.RecommendationsMessage, {"kind": "recommendations", "rows": [GOOD_ROW], "found": 1.5, "threshold": 0.3}),
    (wire.Reach, {"name": "reach", "optimism": 1.0}),
    (wire.BudgetMessage, {"kind": "budget", "more": {"queries": 50}, "note": "one\ntwo"}),
    (wire.MessageDecision, {"decision": "declined", "word": "not this year"}),
    (wire.LetterCreate, {"record": 7}),
    (wire.BudgetRaise, {"budget": {"queries": 150}, "reason": "agreed"}),
    (wire.RecordChoice, {"row": 0}),
    (wire.Labels, {"note": "one\ntwo", "tags": ["pilot", "second try"]}),
    (wire.RecommendationWish, {"kind": "recommendation", "over": "all"}),
    (wire.WithholdCreate, {"person": "P-0042"}),
    (wire.OverlapDecision, {"continues": ["ds_1"], "separate": "another hospital", "pseudonyms_differ": True}),
    (wire.ReadingChoice, {"separator": "|", "decimal": ",", "encoding": "windows-1252", "missing_values": ["?"]}),
    (wire.MeanRelease, {"measurement_ids": [MEASURED["measurement_id"]]}),
    (wire.Countersigning, {"note": "n", "key": "k"}),
    (wire.TokenReplacement, {"token": SECRET}),
    (wire.StopRules, {"target": -1.5, "target_by": "mean", "improvement": 0.1, "expected_improvement": 0.01}),
    (wire.Observation, {"row": 3, "y": 0.5, "noise_variance": 0.0}),
    (wire.ObservationImport, {"observations": [PAST]}),
    (wire.GrantCreate, {"name": "g"}),
    (wire.QueryRequest, {"rows": [{"row": 0}]}),
    (wire.RowPlays, {"row": 0, "plays": 1}),
    (wire.LdpAta, {"name": "ldp_ata", "theory": True, "accuracy": 0.4}),
    (wire.LdpTgp, {"name": "ldp_tgp", "scale": 0.04, "lam": 30.0, "delta": 0.05, "rkhs_bound": 9.0}),
    (wire.TgpTight, {"name": "tgp_tight", "nugget": 0.01}),
    (wire.LdpMoma, {"name": "ldp_moma", "plays": 5}),
    (wire.Ata, HEAVY | {"name": "ata"}),
    (wire.Tgp, HEAVY | {"name": "tgp", "raw_moment": 30.0}),
    (wire.Moma, HEAVY | {"name": "moma", "plays": 9}),
    (wire.LaplaceAdf, {"name": "laplace_adf", "beta": 1.5}),
    (wire.BoundedIgp, {"name": "bounded_igp", "mode": "guaranteed"}),
    (wire.Ei, {"name": "ei", "noise_aware": True, "precision": "double", "optimism": 1.5}),
    (wire.EiDeblurred, {"name": "ei_deblurred", "precision": "single"}),
    (wire.IgpUcb, {"name": "igp_ucb", "theory": False}),
    (wire.Thompson, {"name": "thompson", "scale": 1.0}),
    (wire.LogNormal, {"median": 2.0, "spread": 0.5}),
    (wire.Interval, {"lower": 1.0, "upper": 1.0}),
    (wire.FitBounds, {"lengthscale": {"lower": 1.0, "upper": 2.0}}),
    (wire.FitPriors, {"noise_variance": {"median": 2.0, "spread": 0.5}}),
    (wire.Fit, {"every": 5, "starts": 2, "mean": "kernel", "bounds": {}, "priors": {}}),
    (wire.Auto, {"name": "auto"}),
    (wire.RunSpec, {k: v for k, v in RUN.items() if k != "token"}),
    (wire.RunCreate, RUN),
    (wire.TuningSearch, {"lengthscale": 0.2}),
    (wire.TuningPrior, PRIOR | {"estimated": ["lengthscale"]}),
    (wire.TuningBudget, {"epsilon": "1", "delta": 0.01, "index_share": "0.25"}),
    (wire.TuningSpec, {"budget": {"epsilon": "1"}}),
    (wire.GridExponential, {"name": "grid_exponential", "selection": "exponential", "use_weights": True}),
    (wire.GpDesign, {"name": "gp_design", "prior": PRIOR}),
    (wire.GpUcbSimulated, {"name": "gp_ucb_simulated", "prior": PRIOR, "pairs": 500, "seed": 3}),
    (wire.Kusner1, {"name": "kusner_1", "prior": PRIOR, "q": "paper", "delta_split": "paper", "index_bound": "clip"}),
    (wire.Kusner2, {"name": "kusner_2", "prior": PRIOR, "a": 1.0, "tau": 0.1, "last": 4}),
    (wire.Kusner3, {"name": "kusner_3", "search": {"lengthscale": 0.2}, "form": "paper"}),
    (wire.PublicWeights, {"name": "public_weights", "search": {"lengthscale": 0.2}}),
    (wire.TuningAxis, AXIS),
    (wire.TuningCaps, {"epsilon": "3", "delta": 0.01}),
    (wire.DatasetCaps, {"epsilon": "3", "delta": 0.01, "raise_caps": True, "reason": "agreed"}),
    (wire.LogisticScore, LOGISTIC | {"loss": "clipped_logistic", "clip": 2.0, "threshold": -1.0}),
    (wire.HttpScore, {"kind": "http", "model": "trees", "lower": 0.0, "upper": 1.0, "reply": "records"}),
    (wire.TuningCreate, TUNING),
    (wire.ColumnChoice, {"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]}),
    (wire.ClipsRequest, {"columns": [{"column": "age", "outer": [0.0, 110.0]}]}),
    (wire.OuterRange, {"column": "age", "outer": [0.0, 128.0]}),
    (
        wire.BoundsCreate,
        {"columns": [{"column": "age", "outer": [-1.0, 1.0]}], "quantiles": [0.1, 0.9], "epsilon": "1"},
    ),
    (wire.WithholdCreate, {"record": 3}),
    (wire.MeanRelease, {"measurement_ids": []}),
    (wire.DatasetCaps, {"epsilon": "5", "delta": None, "raise_caps": True, "reason": "a new study"}),
    (wire.StudyAccess, ACCESS),
    (wire.GrantFile, GRANT_FILE),
    (wire.LinkFile, LINK_FILE),
    (wire.LinkPull, {"working": ["0" * 32]}),
    (wire.LinkReply, LINK_REPLY),
    (wire.LinkCarried, {"head": LINK_REPLY, "body": ""}),
]


def read(kind: type[BaseModel], body: object) -> BaseModel:
    return TypeAdapter(kind).validate_json(body if isinstance(body, str) else json.dumps(body))


def refused(kind: type[BaseModel], body: object) -> str:
    try:
        model = read(kind, body)
    except ValidationError as refusal:
        return str(refusal)
    pytest.fail(f"{kind} took {body!r:.200} as {model!r}")


def test_every_request_reads_back_what_it_writes_and_takes_no_unknown_field():
    for kind, body in REQUESTS:
        model = read(kind, body)
        assert read(kind, model.model_dump_json()) == model
        refused(kind, {**body, "module": "os"})
        with pytest.raises(ValidationError, match="frozen"):
            setattr(model, next(iter(kind.model_fields)), "other")


def test_every_kind_of_request_is_in_this_list():
    bases = {
        wire.Request,
        wire.GpRule,
        wire.GpAlgorithm,
        PrivateAnswers,
        wire.FewArmsSpec,
        wire.PaperSpec,
        wire.HeavyTails,
    }  # not sent

    def descendants(kind: type[BaseModel]) -> set[type[BaseModel]]:
        return {kind, *(d for child in kind.__subclasses__() for d in descendants(child))}

    requests = {kind for kind in descendants(wire.Request) if kind.__module__.startswith("blindopt.wire")}
    public = {kind for kind in requests - bases if not kind.__name__.startswith("_")}
    assert public - {kind for kind, _ in REQUESTS} == {wire.GpUcb, wire.GpBucb, wire.RandomRows}


def test_no_name_is_defined_in_two_modules():
    """The package re-exports every public name of its modules: one of two equal names would hide the other."""
    homes: dict[str, list[str]] = {}
    for path in sorted(Path(wire.__file__).parent.rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            match statement:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    homes.setdefault(name, []).append(path.stem)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    homes.setdefault(name, []).append(path.stem)
    public = {name: modules for name, modules in homes.items() if not name.startswith("_")}
    assert {"Request", "GpUcb", "AlgorithmSpec", "PLAYS_MAX", "amount"} <= public.keys()
    assert {name: modules for name, modules in public.items() if len(modules) > 1} == {}


# --- numbers ---------------------------------------------------------------------------------------

NUMBERS = [
    (wire.Feature, FEATURE, "lower"),
    (wire.Feature, FEATURE, "upper"),
    (wire.Feature, FEATURE, "scale"),
    (wire.Feature, FEATURE, "hidden_change"),
    (wire.Kernel, KERNEL, "lengthscale"),
    (wire.Kernel, KERNEL, "signal_variance"),
    (wire.Kernel, KERNEL, "noise_variance"),
    (wire.Kernel, KERNEL, "mean"),
    (wire.ColumnMeasurement, STUDY["measurement"], "noise_variance"),
    (wire.GaussianRelease, GAUSSIAN, "delta"),
    (wire.GaussianRelease, GAUSSIAN, "sensitivity"),
    (wire.PoGpUcbRelease, PUBLISHED, "delta"),
    (wire.PoGpUcbRelease, PUBLISHED, "sensitivity"),
    (wire.LaplaceAnswers, LAPLACE, "value_bound"),
    (wire.LaplaceAnswers, LAPLACE, "noise_bound"),
    (wire.OneBitAnswers, ONE_BIT, "centre"),
    (wire.PiecewiseAnswers, PIECEWISE, "value_bound"),
    (wire.GpUcb, {"name": "gp_ucb"}, "delta_ucb"),
    (wire.Ei, {"name": "ei"}, "optimism"),
    (wire.StopRules, {}, "expected_improvement"),
    (wire.LdpAta, {"name": "ldp_ata"}, "accuracy"),
    (wire.LdpTgp, {"name": "ldp_tgp"}, "lam"),
    (wire.Ata, HEAVY | {"name": "ata"}, "alpha"),
    (wire.Moma, HEAVY | {"name": "moma"}, "noise_moment"),
    (wire.LaplaceAdf, {"name": "laplace_adf"}, "beta"),
    (wire.Thompson, {"name": "thompson"}, "nugget"),
]
NOT_NUMBERS = ["true", "false", '"1"', "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "[1]", "{}", "1" + "0" * 400]


def test_a_field_is_described_where_it_stands_or_by_the_text_below_it():
    class Narrower(wire.Fit):
        every: int = 3

    described = {name: wire.base.description_of(wire.Fit, name) for name in wire.Fit.model_fields}
    assert described["starts"] == "Number of starting points of the search."
    assert described["every"].startswith("Largest number of answers between two fits: one comes after each quarter")
    schema = wire.Fit.model_json_schema()["properties"]
    assert {name: field["description"] for name, field in schema.items()} == described
    assert "\n" not in "".join(described.values())
    assert wire.base.description_of(Narrower, "starts") == described["starts"]
    assert wire.base.description_of(Narrower, "every") is None


def test_a_number_is_a_finite_json_number():
    for kind, body, field in NUMBERS:
        for literal in NOT_NUMBERS:
            refused(kind, json.dumps({**body, field: "HERE"}).replace('"HERE"', literal))


OUTSIDE = [
    (wire.Feature, FEATURE, "scale", [0, -1, 1e-51, 1e51]),
    (wire.Feature, FEATURE, "hidden_change", [0, -1, 1e-51, 1e51]),
    (wire.Feature, FEATURE, "lower", [120.0, 121.0, -1e51]),
    (wire.Kernel, KERNEL, "lengthscale", [0, -1e-300, 1e51]),
    (wire.Kernel, KERNEL, "signal_variance", [0, -1]),
    (wire.Kernel, KERNEL, "noise_variance", [0, -1]),
    (wire.Kernel, KERNEL, "mean", [-1e151, 1e151]),
    (wire.Kernel, KERNEL, "kind", ["matern", "blindopt.gp.kernels.SquaredExponential"]),
    (wire.ColumnMeasurement, STUDY["measurement"], "noise_variance", [-1e-12]),
    (wire.ColumnMeasurement, STUDY["measurement"], "direction", ["up", "MAXIMIZE", 1]),
    (wire.GaussianRelease, GAUSSIAN, "delta", [0, -1e-5, 1e-19, 0.11, 1]),
    (wire.GaussianRelease, GAUSSIAN, "sensitivity", [0, -1, 1e-51]),
    (wire.GaussianRelease, GAUSSIAN, "mechanism", ["Gaussian", "identity", "curator_service.releases.mechanisms"]),
    (wire.AutoRelease, AUTO, "delta", [0, -1e-5, 1e-19, 0.11, 1]),
    (wire.PlanarLaplaceRelease, PLANAR, "sensitivity", [0, -1, 1e-51]),
    (wire.PlanarLaplaceRelease, PLANAR, "delta", [0, 0.11, 1e-19]),
    (wire.GaussianProjectionRelease, PROJECTION, "r", [0, -1, 1_001, 2.0, "2", True]),
    (wire.AutoAnswers, LAPLACE | {"mechanism": "auto"}, "plays", ["both", None, 1]),
    (wire.ForecastCreate, {}, "epsilons", [[], ["0"], ["1"] * 21, [1.0]]),
    (wire.ForecastCreate, {}, "mechanisms", [[], ["laplace"], ["auto"] * 7]),
    (wire.ForecastCreate, {}, "functions", [1, 201, 2.0, True]),
    (wire.TuningBudget, {"epsilon": "1"}, "index_share", ["1.5", "-0.1", 0.5]),
    (wire.TuningBudget, {"epsilon": "1"}, "delta", [1.0, -1e-9]),
    (wire.ForecastCreate, {}, "queries", [1, 501]),
    (wire.ForecastCreate, {}, "rows", ["some", 40]),
    (wire.ForecastCreate, {}, "rows_max", [9, 5_001]),
    (wire.PoGpUcbRelease, PUBLISHED, "r", [0, -1, 1_001, 2.0, "2", True]),
    (wire.PoGpUcbRelease, PUBLISHED, "acknowledge_refuted", [False, None, "true", "yes", 1, 1.0]),
    (wire.RowPlays, {"row": 0, "plays": 1}, "row", [-1, 2**53, 0.0, "0", True, None]),
    (wire.RowPlays, {"row": 0, "plays": 1}, "plays", [0, -1, 1_001, 1.0, True, None]),
    (wire.QueryRequest, {"rows": []}, "rows", [[], None, {}, [{"row": i} for i in range(1_001)]]),
    (wire.StudyCreate, STUDY, "features", [[], None]),
    (wire.StudyCreate, STUDY, "answers", [None, {"mechanism": "magic"}, {}, [], "none", {"epsilon": "1"}]),
    (wire.LaplaceAnswers, LAPLACE, "value_bound", [0, -1, 1e-51, 1e51]),
    (wire.LaplaceAnswers, LAPLACE, "noise_bound", [-1e-12, 1e51]),
    (wire.LaplaceAnswers, LAPLACE, "centre", [-1e51, 1e51]),
    (wire.OneBitAnswers, ONE_BIT, "plays", ["all", 1, True, None]),
    (wire.PiecewiseAnswers, PIECEWISE, "mechanism", ["pw", "laplace"]),
    (wire.StudyCreate, STUDY, "reply_after_ms", [0, -1, 60_001, 50.0, "50", True]),
    (wire.LaplaceAnswers, LAPLACE, "epsilon", ["0", "1001", 1, None]),
    (wire.Budget, {}, "queries", [0, -1, 2**53, 1.0, True]),
    (wire.Budget, {}, "epsilon_per_row", ["0", "0.0", "-1", "1e3", "inf", 1, 1.5, True]),
    (wire.Budget, {}, "epsilon_total", ["0", "0.0", "-1", "1e3", "inf", 1, 1.5, True]),
    (wire.StudyCreate, STUDY, "privacy_unit", ["study", None, 1]),
    (wire.Refine, {"epsilon": "3"}, "epsilon", ["0", "1001", "0.0000001", 3, None]),
    (wire.Refine, {"epsilon": "3"}, "persons", [0, -1, 2**53, 1.0, True]),
    (wire.GrantCreate, {"name": "g"}, "expires_in_days", [0, -1, 3_661, 1.0, True]),
    (wire.Rotation, {}, "expires_in_days", [0, -1, 3_661, 1.0, True]),
    (wire.LogQuota, {"bytes_per_day": None}, "bytes_per_day", [0, (1 << 20) - 1, 1.0, 2**53, True]),
    (wire.GrantCreate, {"name": "g"}, "name", ["", "a\n", "a\x00", "\x1f", "\x7f", "x" * 201, 1]),
    (wire.RunCreate, RUN, "iterations", [0, -1, 100_001, 1.0, True]),
    (wire.RunCreate, RUN, "initial_rows", [-1, 10_001, True]),
    (wire.RunCreate, RUN, "batch_size", [0, -1, 101, 1.0, True]),
    (wire.RunCreate, RUN | {"algorithm": {"name": "gp_ucb"}}, "batch_size", [2]),
    (wire.RunCreate, RUN, "repeats", ["sometimes", None]),
    (wire.RunCreate, RUN, "initial_design", ["grid", "auto"]),
    (wire.RunCreate, RUN, "stop", [None, {"targets": 1.0}, {"improvement": 0.0}, {"target": 1e151}]),
    (wire.RunCreate, RUN, "observations", [None, [{"row": -1, "y": 0.0}], [{"row": 1}], [PAST] * 10_001]),
    (wire.Observation, PAST, "noise_variance", [-1.0, 1e101, True, "1"]),
    (wire.RunCreate, RUN, "seed", [-1, 2**53, 0.5, True]),
    (wire.RunCreate, RUN, "study_id", ["std_1", "std_0123456789ABCDEF", "std_0123456789abcdef\n", "../std"]),
    (wire.RunCreate, RUN, "token", ["", "x" * 201, "x y", "x\r\nX-Header: y"]),
    (wire.GpUcb, {"name": "gp_ucb"}, "delta_ucb", [0, 1, -0.1]),
    (wire.GpUcb, {"name": "gp_ucb"}, "nugget", ["", "IN", None, True]),
    (wire.Ei, {"name": "ei"}, "optimism", [-0.1, 1e7, "2", True]),
    (wire.StopRules, {}, "expected_improvement", [0, -0.1, "0.1", True]),
    (wire.LdpAta, {"name": "ldp_ata"}, "accuracy", [0, 1, -0.1]),
    (wire.LdpTgp, {"name": "ldp_tgp"}, "theory", [1, "true", None]),
    (wire.LdpTgp, {"name": "ldp_tgp"}, "scale", [0, -1, 1e51]),
    (wire.TgpTight, {"name": "tgp_tight"}, "delta", [0, 1, None]),
    (wire.LdpMoma, {"name": "ldp_moma"}, "plays", [0, 10_001, 1.0, True]),
    (wire.Ata, HEAVY | {"name": "ata"}, "alpha", [0, 1.1, -0.5]),
    (wire.Tgp, HEAVY | {"name": "tgp"}, "value_bound", [0, None]),
    (wire.Moma, HEAVY | {"name": "moma"}, "noise_moment", [0, None]),
    (wire.LaplaceAdf, {"name": "laplace_adf"}, "nugget", [-1e-9, 10.1]),
    (wire.BoundedIgp, {"name": "bounded_igp"}, "mode", ["theory", True, None]),
    (wire.IgpUcb, {"name": "igp_ucb"}, "rkhs_bound", [0, -1]),
    (wire.Thompson, {"name": "thompson"}, "scale", [0, None]),
]


def test_what_lies_outside_its_range_is_refused():
    for kind, body, field, outside in OUTSIDE:
        for value in outside:
            refused(kind, {**body, field: value})


def test_a_study_that_refines_nothing_has_the_bytes_of_one_from_before_there_were_refinements():
    plain, refining = (wire.StudyCreate.model_validate(STUDY | more) for more in ({}, {"refine": {"epsilon": "3"}}))
    assert "refine" not in plain.model_dump_json()
    assert '"refine":{"epsilon":"3","persons":null}' in refining.model_dump_json()
    reply = {"id": "qry_0123456789abcdef", "study_id": "std_0", "state": "answered", "answers": [], "salt": ""}
    reply |= {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    assert "refined" not in wire.QueryReply.model_validate(reply).model_dump_json()
    refined = wire.QueryReply.model_validate(reply | {"refined": [{"row": 3, "z": [0.5]}]})
    assert '"refined":[{"row":3,"z":[0.5]}]' in refined.model_dump_json()


def test_a_refuted_mechanism_needs_its_acknowledgement():
    body = dict(PUBLISHED)
    del body["acknowledge_refuted"]
    assert "acknowledge_refuted" in refused(wire.PoGpUcbRelease, body)


def test_a_release_that_names_no_mechanism_is_auto():
    for body in ({"epsilon": "1"}, {"epsilon": "1", "delta": 1e-6}):
        assert read(wire.ReleaseSpec, body) == read(wire.AutoRelease, body)
        assert read(wire.AutoRelease, body).mechanism == "auto"


NOT_AMOUNTS = (
    "0 0.0 -0 -1 +1 nan NaN inf Infinity 1e5 1E-3 .5 1. 1_0 0x1 1,5 0.000000999999 1000.1 1001 9999999 0.0000000000001"
)


def test_an_epsilon_is_a_plain_decimal_string_above_0():
    for wrong in (*NOT_AMOUNTS.split(), "", " 1", "1 ", "1\n", "\u0661", "\uff11", 1, 1.5, True, None):
        refused(wire.GaussianRelease, {**GAUSSIAN, "epsilon": wrong})


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.decimals(min_value="0.000001", max_value=1_000, places=12))
def test_an_epsilon_is_kept_to_its_last_digit(epsilon):
    text = f"{epsilon:f}"
    spec = read(wire.GaussianRelease, {**GAUSSIAN, "epsilon": text})
    assert spec.epsilon == text
    assert wire.amount(spec.epsilon) == epsilon
    assert wire.amount("0.1") * 10 == Decimal(1)


# --- scaling ---------------------------------------------------------------------------------------


def test_the_unit_of_a_feature_is_its_scale_or_its_range():
    assert read(wire.Feature, FEATURE).unit == 120.0
    assert read(wire.Feature, {**FEATURE, "scale": 3.2}).unit == 3.2
    assert read(wire.Feature, {**FEATURE, "hidden_change": 0.5}).unit == 0.5


def test_what_is_hidden_is_stated_once():
    """By changes in each feature's own unit, or by a scale and Delta; older studies state neither or the latter."""
    hides, scaled = {**FEATURE, "hidden_change": 0.5}, {**FEATURE, "column": "other", "scale": 2.0}
    assert "not both" in refused(wire.Feature, {**hides, "scale": 2.0})
    assert "not both" in refused(wire.StudyCreate, {**STUDY, "features": [hides, scaled]})
    assert "sensitivity is 1" in refused(
        wire.StudyCreate, {**STUDY, "features": [hides], "release": {**GAUSSIAN, "sensitivity": 0.5}}
    )
    study = read(wire.StudyCreate, {**STUDY, "features": [hides, {**FEATURE, "column": "other"}], "release": GAUSSIAN})
    assert [feature.unit for feature in study.features] == [0.5, 120.0]
    assert read(wire.StudyCreate, {**STUDY, "features": [scaled]}).features[0].unit == 2.0


# --- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:8443/", "http://10.0.0.1:8000/curator", "http://[::1]:80/x", "http://h.example./"]
)
def test_a_plain_address_is_taken(url):
    assert read(wire.RunCreate, {**RUN, "curator_url": url}).curator_url == url


NOT_ADDRESSES = "h ftp://h file:///etc/passwd http:// http:///x http://user:pass@h http://h?q=1 http://h/x#f"
NOT_ADDRESSES += " file://h/x http://[::1 http://127.0.0.1:99999 http://127.0.0.1:port https://:8410"


@pytest.mark.parametrize(
    "url",
    [
        *NOT_ADDRESSES.split(),
        "http://h/a b",
        "http://h\n",
        "http://h/\n",
        " http://h",
        "javascript:x()",
        "http://h/" + "x" * 2_000,
        "http://" + "h" * 64,
        "http://" + ".".join(["h" * 60] * 5),
        "http://a..b",
    ],
)
def test_an_address_with_secrets_queries_or_another_scheme_is_refused(url):
    refused(wire.RunCreate, {**RUN, "curator_url": url})


# --- secrets ---------------------------------------------------------------------------------------


def test_a_token_is_not_in_the_repr_of_what_carries_it():
    granted = {"id": "g", "kid": "k", "name": "n", "study_id": "s", "expires_at": "2030-01-01T00:00:00Z"}
    for carrier in (
        read(wire.RunCreate, RUN),
        read(wire.TokenReplacement, {"token": SECRET}),
        read(wire.StudyAccess, ACCESS),
        read(wire.GrantFile, GRANT_FILE | {"token": SECRET}),
        read(wire.LinkFile, LINK_FILE | {"token": SECRET}),
        read(wire.GrantReply, granted | {"token": SECRET}),
    ):
        assert carrier.token == SECRET
        for text in (repr(carrier), str(carrier), f"{carrier!s:>9}", repr([carrier]), repr({"it": carrier})):
            assert SECRET[:30] not in text


@pytest.mark.parametrize(
    "body",
    [
        {**RUN, "token": SECRET * 9},
        {**RUN, "token": [SECRET]},
        {k: v for k, v in RUN.items() if k != "curator_url"},
        {"token": SECRET},
    ],
    ids=["too long", "not a string", "another field missing", "the token alone"],
)
def test_a_refused_request_does_not_echo_its_token(body):
    """Exception text is treated as public, and a traceback in a log prints it.

    Not by TypeAdapter, which quotes what it refuses until the model's own validator was built: nothing prints that.
    """
    with pytest.raises(ValidationError) as refusal:
        wire.RunCreate.model_validate_json(json.dumps(body))
    assert SECRET[:20] not in str(refusal.value)


OF_NO_MODEL = [list[str], list[wire.ForecastPoint], list[wire.LinkFile], list[wire.ChosenColumn], wire.MessageCreate]


@pytest.mark.parametrize("kind", OF_NO_MODEL, ids=range(len(OF_NO_MODEL)))
def test_a_validator_of_what_is_no_model_does_not_echo_what_it_refuses(kind):
    for body in ('{"token": "secret"}', '[{"token": "secret"}]', '"secret"'):
        for validator, echoes in ((wire.validator_of(kind), False), (TypeAdapter(kind), True)):
            with pytest.raises(ValidationError) as refusal:
                validator.validate_json(body)
            assert ("secret" in str(refusal.value)) == echoes


# --- replies ---------------------------------------------------------------------------------------


def test_a_reply_may_hold_fields_that_this_version_does_not_know():
    answer = {"row": 1, "play": 1, "y": 2.5, "passport": {"measurement_variance": 0.0, "later": 1}, "later": {}}
    assert read(wire.Answer, answer).y == 2.5


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "1e400", "true", '"2.5"', "null", "1" + "0" * 400])
def test_an_answer_is_a_finite_number(literal):
    refused(wire.Answer, f'{{"row": 1, "play": 1, "y": {literal}, "passport": {{"measurement_variance": 0}}}}')


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n"])
def test_a_digest_is_64_lower_hexadecimal_digits(digest):
    body = {"size": 1, "note": "n"}
    refused(wire.Checkpoint, body | {"root": digest})
    assert read(wire.Checkpoint, body | {"root": "0" * 64}).size == 1
