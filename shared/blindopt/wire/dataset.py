"""Registered tables, as their owner sees them."""

from datetime import date, datetime
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from blindopt.wire.base import FEATURES_MAX, BoundedFloat, CellReading, Epsilon, Name, Page, Reply, Request, Sha256

BOUNDS_COLUMNS_MAX = 100
BOUNDS_QUANTILES_MAX = 9
BOUNDS_VALUES_MAX = 10_000_000
"""The most values that the draws of a request may read, which takes half a minute."""
_Quantile = Annotated[float, Field(ge=0.001, le=0.999)]

ROWS_PER_PERSON_MAX = 1_000
CATEGORIES_MAX = 100
LABELS_MAX = 3
LABEL_CHARACTERS_MAX = 200
DateFormat = Literal["iso", "d.m.y", "d/m/y", "m/d/y"]
Contents = Literal["number", "date", "text", "empty", "other"]
_Category = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
MARKERS_MAX = 20
Markers = Annotated[list[_Category], Field(max_length=MARKERS_MAX)]
"""Cells that count as missing, as they are written, without blanks around them."""
Separator = Literal[",", ";", "\t", "|"]
DecimalSign = Literal[".", ","]
Encoding = Literal["utf-8", "windows-1252"]
PersonIds = Literal["folded_1", "as_written"]
"""How ids of persons are compared. Another folded form would be folded_2: a dataset keeps the form it was read with."""


class ColumnChoice(Request):
    """How a column of a file is read. All of it is public: it must not be computed from the records."""

    column: Name = Field(description="Name, as in the header of the file; column_1 for the first, if it has none.")
    kind: Literal["number", "one_hot", "codes", "date", "label"] = "number"
    """number: as it is. one_hot: a column for each of values, named column=value, that is 1 where the cell is this
    value, else 0; flags of Parquet are False and True. codes: the position of the cell in values, from 1. date: days
    since a date. label: kept as written for the people or the system that measure and for the record's page, of up to
    200 characters, stored encrypted; no feature and no outcome. At most 3 columns."""
    values: list[_Category] | None = Field(None, min_length=1, max_length=CATEGORIES_MAX)
    """For one_hot and codes: the categories, in order. Any other cell counts as missing."""
    date_format: DateFormat | None = None
    """For date; null: iso, which is 2024-12-31, also with a time. Others: 31.12.2024, and so on."""
    since: date | None = Field(None, strict=False, description="For date: day 0; null: 1970-01-01.")
    missing: Literal["refuse", "leave_out", "fill"] = "refuse"
    """What is done where a cell is empty, NA, N/A, NaN, null or None, or no category: refuse the file, leave the row
    out, or take fill. How many rows are left is public, and nothing hides that a row has a gap."""
    fill: BoundedFloat | None = None
    """For missing fill: a number in place of the cell; for one_hot only 0."""
    missing_values: Markers = []
    """Further cells that count as missing in this column, as they are written, such as "?" or "-999"."""

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        has_values = self.kind in ("one_hot", "codes")
        if has_values != (self.values is not None):
            raise ValueError("values belong to one_hot and codes, and to these alone")
        if self.values is not None and len({value.strip() for value in self.values} - {""}) < len(self.values):
            raise ValueError("values holds a value twice, or a blank one")
        if set(map(str.strip, self.missing_values)) & {value.strip() for value in self.values or ()}:
            raise ValueError("missing_values and values hold the same cell: it is a gap or a category")
        if self.kind != "date" and (self.date_format is not None or self.since is not None):
            raise ValueError("date_format and since belong to date")
        if (self.missing == "fill") != (self.fill is not None):
            raise ValueError("fill belongs to missing fill")
        if self.kind == "label" and (self.missing != "refuse" or self.missing_values):
            raise ValueError("missing, fill and missing_values do not belong to label: a label is kept as written")
        if self.kind == "one_hot" and self.fill:
            raise ValueError("fill of one_hot is 0: no category")
        return self

    @property
    def stored(self) -> list[str]:
        """Names of the columns of numbers that are stored."""
        if self.kind == "label":
            return []
        if self.kind != "one_hot" or self.values is None:
            return [self.column]
        return [f"{self.column}={value.strip()}" for value in self.values]


def _written_as(value: object) -> str:
    return "name" if isinstance(value, str) else "choice"


ChosenColumn = Annotated[
    Annotated[Name, Tag("name")] | Annotated[ColumnChoice, Tag("choice")], Discriminator(_written_as)
]
"""A column by its name, to be read as numbers, or with how it is read: a fault is of that form alone."""


class ReadingChoice(Request):
    """How a file is to be read. All of it is public: it must not be computed from the records.

    The service finds out what is null, and asks where two readings are possible.
    """

    separator: Separator | None = Field(None, description="What separates cells in CSV; null: detected.")
    decimal: DecimalSign | None = None
    """Decimal sign of all numbers in CSV; null: that of cells which can be read in one way only."""
    encoding: Encoding | None = Field(None, description="Encoding of CSV; null: utf-8.")
    missing_values: Markers = []
    """Further cells that count as missing in every column, as they are written, such as "?" or "-999"."""
    columns: list[ChosenColumn] | None = None
    """Columns to read and store; all others are left out. Null: all, as numbers."""
    person: Name | None = Field(None, description="Column that says whose each record is; null: none.")
    rows_per_person: int | None = Field(None, ge=1, le=ROWS_PER_PERSON_MAX)
    """With person: so many records of a person are kept, at random."""
    person_ids: PersonIds | None = None
    """With person: folded_1 takes ids for one person that differ only in how they are written, as 1017 and 1017.0;
    as_written takes these for two persons. Null: folded_1, and asked where ids differ so."""

    @model_validator(mode="after")
    def _persons_belong_together(self) -> Self:
        if (self.person is None) != (self.rows_per_person is None):
            raise ValueError("person and rows_per_person belong together: send both, or neither")
        if self.person is None and self.person_ids is not None:
            raise ValueError("person_ids belongs to person")
        return self


class FileReading(Reply):
    """How a file was read, as its owner chose: public, and enough to read it again with the same result."""

    separator: Separator | None = Field(description="What separates cells in CSV; null for Parquet.")
    decimal: DecimalSign | None = Field(description="Decimal sign of numbers in CSV; null for Parquet.")
    encoding: Encoding | None = None
    """Encoding of CSV; null for Parquet, and for datasets of versions before 0.3."""
    missing_values: Markers = Field([], description="Further cells that count as missing in every column.")
    columns: list[ColumnChoice] = Field(description="Columns that were read, and how.")
    gaps: list[str] = []
    """Columns of which the owner saw missing or unreadable cells before choosing how the file is read: what is promised
    holds between files with the same ones."""
    person_ids: PersonIds | None = None
    """How ids of persons are compared; null: as_written, or no person column."""

    @property
    def labels(self) -> list[str]:
        """Names of the columns that are kept as labels."""
        return [choice.column for choice in self.columns if choice.kind == "label"]


class SurveyedColumn(Reply):
    """What a column of a file holds: for its owner alone."""

    name: str = Field(description="Name as in the header, or column_1 for the first, if it has none.")
    holds: Contents
    """What all cells are that are not missing; other: a type of Parquet that cannot be read."""
    missing: int = Field(description="Number of missing cells.")
    rounded: int = 0
    """Number of cells that would be stored as another number: integers beyond 2^53, or too close to 0."""
    first: list[str] = Field([], description="The first five cells, as they are written; long ones are cut.")
    wrong: int = Field(description="Number of cells that are neither missing nor numbers.")
    wrong_row: int | None = Field(None, description="Row of the first of these, from 1; null: none.")
    odd: list[str] = []
    """What these cells are, each once, where nearly all filled cells are numbers: they may be markers of gaps, such as
    <5 or -, which missing_values of the column can name."""
    values: list[str] | None = None
    """Different texts in order, or different numbers as they are written, which may be codes of categories; null: more
    than 100 texts, too long ones, or more than 12 numbers."""
    date_formats: list[DateFormat] = Field(description="Formats that fit every cell, where it is a date.")
    constant: bool = Field(description="Whether every cell is the same.")
    distinct: bool = False
    """Whether it is text of which no two filled cells are equal, as names are."""
    unnamed: bool = Field(description="Whether the file gives it no name, as for an index.")


class NamedDataset(Reply):
    """A dataset with its name."""

    id: str = Field(description="ds_...")
    name: str = Field(description="For people.")


class UploadCreated(Reply):
    """A file is kept until its owner decides how to read it."""

    id: str = Field(description="upl_...")
    expires_at: datetime = Field(description="When it is deleted, unless it was registered or discarded before.")


class RemainingRows(Reply):
    """What a registration would store of a file that is read so. For the owner alone."""

    rows: int = Field(description="Number of records that are stored.")
    left_out: int = Field(description="Number of records that are left out because a value is missing.")
    person_rows_dropped: int = 0
    """Number of records that are left out because their person has more."""
    copies: int | None = None
    """Number of records that equal an earlier one in every column; null: too many to compare."""
    constant: list[str] = Field([], description="Columns with the same value in every stored record.")


class PendingUpload(UploadCreated):
    """A file that was uploaded and is not registered yet: for the owner who uploaded it alone."""

    filename: str = Field(description="Name of the file.")
    sha256: Sha256 = Field(description="SHA-256 of the file; of a packed one, of what is in it.")
    rows: int = Field(description="Number of records.")
    separator: Separator | None = Field(description="What separates cells in CSV; null for Parquet.")
    decimal: DecimalSign | None = Field(description="Decimal sign that was detected; null for Parquet.")
    unsure: list[CellReading] = []
    """If no cell shows whether decimal is right: the first five cells that have two readings."""
    encoding: Encoding | None = Field(None, description="Encoding of CSV; null for Parquet.")
    samples: list[str] = []
    """Words of a file that is not UTF-8, as Windows-1252 reads them, to be checked."""
    columns: list[SurveyedColumn] = Field(description="What was found in its columns.")
    reading: ReadingChoice | None = None
    """How it is read: as proposed, or as its owner said last. Null: no column can be read yet."""
    remaining: RemainingRows | None = None
    """What a registration with this reading would store; null: it would be refused."""
    registered_as: list[NamedDataset] = Field(description="Datasets that are registrations of the same file.")

    @property
    def gaps(self) -> list[str]:
        """Columns with cells that are missing, or unreadable among numbers. Text throughout is no gap."""
        filled = {column.name: self.rows - column.missing for column in self.columns}
        return [c.name for c in self.columns if c.missing > 0 or 0 < c.wrong < filled[c.name]]


class UploadPage(Page):
    """A page of uploads."""

    uploads: list[PendingUpload] = Field(description="The caller's own, in the order in which they came.")


class UploadDiscarded(Reply):
    """A pending upload is deleted."""

    id: str = Field(description="upl_...")


class Column(Reply):
    """One numeric column of a dataset, as the owner sees it."""

    name: str = Field(description="Name, as in the header of the file.")
    type: Literal["number"] = Field("number", description="Type of the values: only numbers are stored.")
    missing: Literal[0] = Field(0, description="Always 0: records with missing values are left out, or filled.")
    minimum: float = Field(description="Smallest value, in units of the column: private, for the owner only.")
    maximum: float = Field(description="Largest value, in units of the column: private, for the owner only.")
    rounded: int = 0
    """Number of values that differ from the file: integers beyond 2^53, or numbers too close to 0. A decimal is the
    nearest double, to about 16 digits, and is not counted."""


class Overlap(Reply):
    """How many people of a dataset are in an earlier one, of another file. For the owner alone."""

    dataset_id: str = Field(description="ds_... of the earlier dataset.")
    unit: Literal["person", "record"]
    """What was compared: keyed digests of persons if both files have a person column, else of records."""
    matched: int = Field(ge=1, description="How many are in both.")
    of: int = Field(ge=1, description="How many different ones this dataset has.")
    decision: Literal["undecided", "continues", "separate"]
    """What its owner decided. undecided: until then nothing of the dataset is released, tuned or bounded. continues:
    both have one account. separate: their accounts are apart."""
    sentence: str
    """The same in words; not in a list of datasets also what the earlier one has used and withholds."""


class OverlapDecision(Request):
    """Whose account a dataset continues, and why it does not continue that of another one with the same people.

    It cannot be undone: accounts that have become one stay one.
    """

    continues: list[str] = Field([], max_length=100)
    """ds_... of earlier datasets, also erased ones, whose accounts become one with that of this dataset. Its caps are
    the lowest of all."""
    separate: Name | None = None
    """Why the account stays apart from each other dataset with the same people: accounts and reports of both say so,
    and the log has its digest. Needed if continues does not name all."""
    pseudonyms_differ: bool = False
    """Whether the persons in continues have other names here. Then everybody here has used as much as the person there
    who has used most. So it is if nobody here is in them, or they were erased."""

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if not self.continues and self.separate is None:
            raise ValueError("give continues or separate")
        return self


class DatasetView(Reply):
    """A registered table, for the owner only."""

    id: str = Field(description="ds_...")
    name: str = Field(description="For people.")
    public: bool = Field(description="Whether the owner declares that nobody in it needs protection.")
    state: Literal["active", "archived"] = Field(description="An archived dataset takes no new study.")
    rows: int = Field(description="Number of records that are stored.")
    columns: list[Column] = Field(description="Columns that were read and stored.")
    dropped: list[str] = Field(description="Columns of the file that were neither read nor stored.")
    sha256: Sha256 = Field(description="SHA-256 of the uploaded file; of a sandbox, of its stored numbers.")
    sandbox: bool = Field(False, description="Whether its records are made up, for a sandbox study.")
    created_at: datetime = Field(description="When it was registered.")
    erased_at: datetime | None = None
    """When its records, and what was measured of them, were erased; null: they are there."""
    person_column: str | None = None
    """Column that says whose each record is; only a keyed digest of it is stored. Null: none."""
    rows_per_person: int | None = None
    """Most records of one person that were kept; null without a person column."""
    persons: int | None = Field(None, description="Number of persons; null without a person column.")
    person_rows_dropped: int | None = None
    """Rows left out because their person has more; null without a person column."""
    reading: FileReading | None = None
    """How the file was read; null for a sandbox, and for datasets of versions before 0.3."""
    rows_left_out: int = 0
    """Rows left out because a value is missing, as reading says: private, for the owner only."""
    overlaps: list[Overlap] = []
    """Earlier private datasets of other files with the same people, when it was registered."""


class ColumnPicture(Reply):
    """A histogram of one column: private, for the owner alone."""

    column: str = Field(description="Name of the column.")
    low: float = Field(description="Smallest value: the lower end of the first bin.")
    high: float = Field(description="Largest value: the upper end of the last bin.")
    counts: list[int] = Field(description="How many values are in each of 20 bins of equal width.")
    far: int = Field(description="How many values lie beyond an empty stretch that is wider than half the range.")


class DatasetPicture(Reply):
    """What the values of a dataset are like: private, for the owner alone, and stored nowhere."""

    rows: int = Field(description="Number of records.")
    columns: list[ColumnPicture] = Field(description="Its columns.")
    copies: int | None
    """Number of records that equal an earlier one, labels aside; null: too many to compare."""
    labels_repeated: int = Field(description="Number of records with a label that another record has too.")
    caution: str = Field(description="Why public inputs must not be chosen by it, in words.")


class DatasetErased(Reply):
    """What was erased with a dataset. Ids, sizes, charges, the ledger and the logs stay."""

    id: str = Field(description="ds_...")
    erased_at: datetime = Field(description="When it was erased.")
    studies: list[str] = Field(description="Its studies, which are closed: their candidates and answers are erased.")
    queries: int = Field(description="Number of their queries.")
    measurements: int = Field(description="Number of entries about measurements whose values and notes were erased.")
    replies: int = Field(description="Number of stored replies to vendors that were erased.")
    versions: int = Field(description="Number of published versions of answers that were erased.")
    messages: int = Field(description="Number of vendors' messages that were erased.")
    results: int = Field(description="Number of results of tunings and private bounds that were erased.")


class LetterCreate(Request):
    """A record, or every record of a person, that a letter is about."""

    record: int | None = Field(None, ge=1, lt=2**53, description="Number of the record in the dataset's file, from 1.")
    file_row: int | None = Field(None, ge=1, lt=2**53, description="The same as a spreadsheet numbers it.")
    label: str | None = Field(None, min_length=1, max_length=1_000, repr=False)
    """A label of the record, which no other record has; it is not stored again."""
    person: str | None = Field(None, min_length=1, max_length=1_000, repr=False)
    """The person, as in the file's person column; it is not stored."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum(value is not None for value in (self.record, self.file_row, self.label, self.person)) != 1:
            raise ValueError("give record or file_row or label or person")
        return self


class WithholdCreate(LetterCreate):
    """A record, or every record of a person, that is to be measured and released no more."""

    dry_run: bool = Field(False, description="Only name the records: nothing is withheld.")


class RecordText(Reply):
    """A cell of a record as its file has it."""

    column: str = Field(description="Name of the column in the file.")
    text: str = Field(repr=False, description="A label, a category, a date or a number, as a person reads it.")


class NamedRecord(Reply):
    """A record as a person finds it: for its owner alone."""

    record: int = Field(description="Number of the record in the dataset's file, from 1.")
    file_row: int | None = Field(description="The same as a spreadsheet numbers it; null: not known.")
    labels: list[RecordText] = Field(description="Its labels.")


class WithheldReply(Reply):
    """A record is withheld."""

    dataset_id: str = Field(description="ds_...")
    records: int = Field(description="Number of records of the dataset that are withheld now.")
    named: list[NamedRecord] = Field([], repr=False)
    """Of a dry run: the records that would be withheld, 100 at most."""


class WithheldRecord(Reply):
    """A record or person that is withheld: for the owner only."""

    seq: int = Field(description="Position in the list.")
    record: int | None = Field(description="Number of the record in the dataset's file, from 1; null for a person.")
    file_row: int | None = Field(None, description="The same as a spreadsheet numbers it; null: unknown, or a person.")
    person: str | None = Field(description="Keyed digest of the person; null for a record.")
    created_at: datetime = Field(description="From when on it is withheld.")


class WithheldPage(Page):
    """A page of withheld records."""

    withheld: list[WithheldRecord] = Field(description="In the order in which they were withheld.")


class DatasetPage(Page):
    """A page of datasets."""

    datasets: list[DatasetView] = Field(description="Datasets, in the order of registration.")


# --- private bounds ----------------------------------------------------------------------------------


class OuterRange(Request):
    """A column with a public range that its values are clamped to."""

    column: Name = Field(description="Name of a column of the dataset.")
    outer: list[BoundedFloat] = Field(min_length=2, max_length=2)
    """Lower and upper end, in units of the column: public, and surely wide enough."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        lower, upper = self.outer
        if upper - lower <= 1e-9 * max(abs(lower), abs(upper)):
            raise ValueError("outer must be [lower, upper], with room between them")
        return self


class BoundsCreate(Request):
    """A request for private quantiles of columns. All of it is public."""

    columns: list[OuterRange] = Field(min_length=1, max_length=BOUNDS_COLUMNS_MAX)
    """Columns, each with its outer range; none twice."""
    quantiles: list[_Quantile] | None = Field(None, min_length=2, max_length=BOUNDS_QUANTILES_MAX)
    """Shares of records below, in ascending order. Null: the two outermost that epsilon and the number of records
    allow, from 0.01 and 0.99 to 0.25 and 0.75."""
    epsilon: Epsilon
    """epsilon of all quantiles together, for replacing one record, or one person's records."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        names = [column.column for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError("a column is named twice")
        if self.quantiles is not None and any(a >= b for a, b in pairwise(self.quantiles)):
            raise ValueError("quantiles must ascend")
        return self


class ColumnBounds(Reply):
    """Private quantiles of one column: public from now on."""

    column: str = Field(description="Name of the column.")
    outer: list[float] = Field(description="The public range, in units of the column, that its values were clamped to.")
    quantiles: list[float] = Field(description="One for each of the quantiles, in ascending order.")
    lower: float = Field(description="Lower bound: the first quantile, a step lower where all are equal.")
    upper: float = Field(description="Upper bound: the last quantile, a step higher where all are equal.")


class PrivateBounds(Reply):
    """Private bounds of columns, or bounds that were charged and are not drawn yet."""

    id: str = Field(description="bnd_...")
    dataset_id: str = Field(description="ds_...")
    state: Literal["drawn", "interrupted"]
    """interrupted: charged, and stopped before its draw; the same request under its key draws."""
    epsilon: Epsilon = Field(description="epsilon that every record was charged.")
    unit: Literal["record", "person"] = Field(description="Whose protection epsilon is about.")
    quantiles: list[float] = Field(description="Shares of records below.")
    rank_error: float
    """Number of records by which the rank of each quantile is off at most, with probability 0.95, compared with the
    best candidate."""
    columns: list[ColumnBounds] = Field(description="One for each column; empty if interrupted.")
    guarantee: str = Field(description="What is promised, in words.")
    created_at: datetime = Field(description="When it was charged.")


class ClipsRequest(Request):
    """Bounds that an owner thinks of."""

    columns: list[OuterRange] = Field(min_length=1, max_length=FEATURES_MAX, description="Columns with their bounds.")


class ColumnClips(Reply):
    """How many values of a column lie outside its bounds: private, for the owner only."""

    column: str = Field(description="Name of the column.")
    below: int = Field(description="Number of records that the lower bound would clip.")
    above: int = Field(description="Number of records that the upper bound would clip.")
    is_smallest: bool = Field(description="Whether the lower bound is exactly the smallest value.")
    is_largest: bool = Field(description="Whether the upper bound is exactly the largest value.")


class ClipsView(Reply):
    """What bounds would clip: private, for the owner only."""

    rows: int = Field(description="Number of records.")
    columns: list[ColumnClips] = Field(description="One for each column, in the order of the request.")
    caution: str = Field(description="What choosing by this leaks.")


class BoundsPage(Page):
    """A page of private bounds."""

    bounds: list[PrivateBounds] = Field(description="In the order of their charges.")
