"""Files of records: find out what their columns hold, and read them as numbers, a block of rows at a time."""

from curator_service.datasets.findings import ERRORS_SHOWN, Limits, refuse
from curator_service.datasets.reading import Table, read_table
from curator_service.datasets.survey import Surveyed, survey
from curator_service.datasets.unpacking import digest_of, is_parquet, unpacked

__all__ = [
    "ERRORS_SHOWN",
    "Limits",
    "Surveyed",
    "Table",
    "digest_of",
    "is_parquet",
    "read_table",
    "refuse",
    "survey",
    "unpacked",
]
