"""The process of one trial: see ``worker``."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the very code that the curator runs
    # One core: the exchange goes on beside it, and no process of the noise's is left behind by a kill. At the usual
    # priority, for somebody waits. BLAS is told before numpy is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.putenv(name, "1")

    from curator_service.attacks.worker import serve
    from curator_service.child import take_core

    take_core(2)
    with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as sink:
        serve(source, sink)
        os._exit(0)  # a thread still waits for the other end of the pipe
