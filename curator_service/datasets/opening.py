"""Opens a file of records, of either format."""

from contextlib import AbstractContextManager
from typing import BinaryIO

from curator_service.datasets.csv_source import CsvSource, csv_source
from curator_service.datasets.findings import Limits
from curator_service.datasets.parquet_source import ParquetSource, parquet_source

Source = CsvSource | ParquetSource


def open_source(file: BinaryIO, limits: Limits, *, parquet: bool) -> AbstractContextManager[Source]:
    """The source of a Parquet or a CSV file."""
    return parquet_source(file, limits) if parquet else csv_source(file, limits)
