"""Two services with hostile names alone: markup, spreadsheet formulas, text that turns itself around, huge numbers."""

from dataclasses import dataclass

import numpy as np

from blindopt import wire
from blindopt.client import Measurer, Owner, Vendor
from tests.browser.two_services import BothServices
from tests.conftest import _until as until
from tests.curator_service import tuning_case

# Whose a text is, by the number that it would set if it ran: what a role must not see is looked for by these.
STUDY, COLUMN, QUESTION, GRANT, NOTE, DATASET, RUN = range(1, 8)
FORMULA = '=HYPERLINK("http://outside.example/","x")'
TURNED = "\u202egnp.exe\u2066 <b>bold</b>"


def markup(of: int) -> str:
    """An element that would run."""
    return f"<img src=x onerror=window.ran={of}>"


def script(of: int) -> str:
    """What would end whatever it stands in, and run."""
    return f"\"'></textarea></select></title><script>window.ran={of}</script>{{{{7*7}}}}"


COLUMNS = (markup(COLUMN), "=1+1+cmd|' /C calc'!A0", "\u05e9\u05dc\u05d5\u05dd<i>")
HUGE = 1e49
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)
KERNEL = wire.Kernel(lengthscale=0.5, signal_variance=1.0, noise_variance=0.1)


@dataclass(frozen=True)
class Ids:
    """Ids of what the services hold, by the names of parameters of addresses."""

    dataset_id: str
    study_id: str
    forecast_id: str
    tuning_id: str
    measurement_id: str
    run_id: str
    message_id: str
    groups_id: str


AUTO = wire.AutoRelease(mechanism="auto", epsilon="4", delta=None, sensitivity=0.25)


def csv() -> bytes:
    """40 rows; the last column holds what no chart expects."""
    rows = np.random.default_rng(3).uniform(size=(40, 3))
    lines = [",".join('"' + name.replace('"', '""') + '"' for name in COLUMNS)]
    lines += [f"{a:.4f},{b:.4f},{c:.4f}" for a, b, c in rows[:-1]] + [f"0.5,0.5,{HUGE!r}"]
    return ("\n".join(lines) + "\n").encode()


def text_csv() -> bytes:
    """Columns of hostile text, of dates and of gaps."""
    header = ",".join('"' + name.replace('"', '""') + '"' for name in (FORMULA, "day", COLUMNS[0], "gap"))
    texts = (markup(COLUMN), TURNED, script(COLUMN).replace('"', '""'))
    lines = [f'"{text}",2024-01-0{i + 1},"{text}",{i or ""}' for i, text in enumerate(texts)]
    return "\n".join([header, *lines]).encode()


def spec(dataset: str, measurement: wire.MeasurementSpec, **more: object) -> wire.StudyCreate:
    """A study on it."""
    return wire.StudyCreate(
        name=f"{FORMULA} {markup(STUDY)}",
        dataset_id=dataset,
        features=[wire.Feature(column=name, lower=0.0, upper=1.0) for name in COLUMNS[:2]],
        measurement=measurement,
        kernel=KERNEL,
        **({"answers": wire.NONE, "release": AUTO} | more),
    )


def furnished(services: BothServices) -> Ids:
    """Everything that a page can be about, made through the API."""
    made = services.curator.run_in_process("token", "create", "--role", "measurer", "--name", FORMULA)
    assert made.returncode == 0, made.stderr
    with (
        Owner(services.curator.url, services.curator.token, timeout_s=120) as owner,
        Vendor(services.modeler.url, services.modeler.token, timeout_s=120) as vendor,
        Measurer(services.curator.url, made.stdout.strip(), timeout_s=120) as measurer,
    ):
        dataset = owner.register(script(DATASET), csv()).id
        column = wire.ColumnMeasurement(column=COLUMNS[2], direction="maximize")
        budget = wire.Budget(epsilon_per_row="6", epsilon_total="100", queries=50)
        draft = owner.create_study(spec(dataset, column, answers=LAPLACE, budget=budget))
        study = draft.id
        forecast_spec = wire.ForecastCreate(epsilons=["1", "4"], functions=2, queries=5, rows_max=40)
        forecast = owner.start_forecast(study, forecast_spec).id
        owner.release(study, request=wire.ReleaseAsked(spec_sha256=draft.spec_sha256, confirm_chance=True))
        grid = wire.GridCells(kind="grid", parts=[2, 2])
        of_groups = wire.GroupsRelease(mechanism="groups", epsilon="0.5", cells=grid, min_count=1)
        laplace = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)
        groups = owner.create_study(spec(dataset, column, release=of_groups, answers=laplace)).id
        owner.release(groups)
        runs = [_ran(services, owner, vendor, study, name) for name in (script(RUN), FORMULA)]
        measurement = _measured(services, owner, vendor, measurer, dataset)
        case = tuning_case.registered(owner, m=60)
        tuning = owner.start_tuning(case.spec("1", name=script(DATASET))).id
        owner.wait_tuning(tuning, timeout_s=120)
        owner.wait_forecast(study, forecast, timeout_s=120)
        vendor.send_message(runs[0], wire.RecommendationWish(kind="recommendation", note=f"{script(RUN)} {TURNED}"))
        vendor.send_message(runs[0], wire.BudgetMessage(kind="budget", more=wire.Budget(queries=9), note=FORMULA))
        owner.raise_caps(study, wire.BudgetRaise(budget=budget.model_copy(update={"queries": 51}), reason=FORMULA))
        message = owner.messages(study_id=study)[0].id
        return Ids(dataset, study, forecast, tuning, measurement, runs[0], message, groups)


def _ran(
    services: BothServices, owner: Owner, vendor: Vendor, study: str, name: str, *, wait: bool = True, **more: int
) -> str:
    grant = owner.grant(study, wire.GrantCreate(name=markup(GRANT)))
    spec = wire.RunCreate(
        name=name,
        curator_url=services.curator.url,
        study_id=study,
        token=grant.token,
        algorithm=wire.GpBucb(name="gp_bucb"),
        **({"initial_rows": 4, "iterations": 4, "batch_size": 4} | more),
    )
    run = vendor.start(spec).id
    if wait:
        assert vendor.wait(run, timeout_s=120).state == "completed"
    return run


def _measured(services: BothServices, owner: Owner, vendor: Vendor, measurer: Measurer, dataset: str) -> str:
    """A study by hand: one measurement answered, one declined, two open; which one was declined."""
    by_hand = wire.InboxMeasurement(
        direction="minimize", question=f"{script(QUESTION)} {TURNED}", unit=markup(QUESTION), shown=list(COLUMNS)
    )
    study = owner.create_study(spec(dataset, by_hand)).id
    owner.release(study)
    _ran(services, owner, vendor, study, "-1+1|cmd", wait=False)
    items = until(lambda: len(waiting_items := list(measurer.measurements(study_id=study))) == 4 and waiting_items)
    value = wire.Measured(measurement_id=items[0].id, value=1e49)
    measurer.answer(items[0].query_id, wire.AnswerCreate(values=[value], note=FORMULA))
    decline = wire.DeclineCreate(
        measurement_ids=[items[1].id], reason="other", note=f"{FORMULA}\n{script(NOTE)} {TURNED}"
    )
    measurer.decline(items[1].query_id, decline)
    return items[1].id


def waiting(services: BothServices) -> tuple[str, str]:
    """A study by hand, and a run of two queries that waits for its first: their ids."""
    with (
        Owner(services.curator.url, services.curator.token, timeout_s=120) as owner,
        Vendor(services.modeler.url, services.modeler.token, timeout_s=120) as vendor,
    ):
        by_hand = wire.InboxMeasurement(direction="maximize", question="How much?")
        study = owner.create_study(spec(owner.register("to wait for", csv()).id, by_hand)).id
        owner.release(study)
        run = _ran(services, owner, vendor, study, "patient", wait=False, initial_rows=1, iterations=1, batch_size=1)
        until(lambda: vendor.run(run).view.open_measurements == 1)
        return study, run
