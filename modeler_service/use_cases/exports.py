"""A run as a file: CSV for people, Parquet for programs."""

import csv
import importlib.util
import io
from typing import Any

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.formats.safe_csv import harmless

COLUMNS = (
    "number", "query", "phase", "row", "y", "declined", "version", "plays", "mean", "sd", "acquisition", "ties",
    "measurement_variance", "privacy_family", "privacy_scale", "privacy_variance", "query_id", "chosen_at", "asked_at",
    "answered_at",
)  # fmt: skip
RUN_KEY = b"blindopt_run"
"""Metadata of a Parquet file: the whole export as JSON, without its trials."""


def as_csv(export: wire.RunExport) -> str:
    """Return the trials, one line each. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for trial in export.trials:
        writer.writerow({name: harmless(value) for name, value in _line(trial).items()})
    return file.getvalue()


def has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def as_parquet(export: wire.RunExport) -> bytes:
    """Return the trials as columns, and the rest of the export as metadata. Raises Invalid without pyarrow."""
    if not has_parquet():
        raise Invalid("parquet needs pyarrow, which is not installed here: ask for json or csv, or install it")
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"phase": pa.string(), "query_id": pa.string(), "privacy_family": pa.string()}
    kinds |= dict.fromkeys(("number", "query", "row", "version", "plays", "ties"), pa.int64())
    kinds |= dict.fromkeys(("chosen_at", "asked_at", "answered_at"), pa.timestamp("us", tz="UTC"))
    kinds["declined"] = pa.bool_()
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in COLUMNS])
    whole = export.model_copy(update={"trials": []}).model_dump_json().encode()
    moments = ("chosen_at", "asked_at", "answered_at")
    trials = [_line(trial) | {name: getattr(trial, name) for name in moments} for trial in export.trials]
    columns = pa.Table.from_pylist(trials, schema=schema.with_metadata({RUN_KEY: whole}))
    file = io.BytesIO()
    pq.write_table(columns, file)
    return file.getvalue()


def _line(trial: wire.TrialView) -> dict[str, Any]:
    values: dict[str, Any] = trial.model_dump(mode="json")
    if trial.passport is not None:
        values["measurement_variance"] = trial.passport.measurement_variance
        for name in ("family", "scale", "variance"):
            values[f"privacy_{name}"] = getattr(trial.passport.privacy, name)
    return {name: values.get(name) for name in COLUMNS}
