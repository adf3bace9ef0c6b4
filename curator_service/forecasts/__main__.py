"""The process of one forecast: see ``worker``."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the very code that the curator runs
    # One core, and that one politely: the exchange comes first. BLAS is told before numpy is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.putenv(name, "1")

    from curator_service.child import take_core
    from curator_service.forecasts.worker import NICENESS, serve

    os.nice(NICENESS)
    take_core(1)
    with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as sink:
        serve(source, sink)
        os._exit(0)  # a thread still waits for the other end of the pipe
