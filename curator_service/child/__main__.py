"""The program of a child process: ``python __main__.py MODULE LIBRARY`` does the jobs of the PROGRAM in that module.

LIBRARY is the folder that holds the package blindopt.
"""

import importlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), sys.argv[2]]  # the same code that the curator runs
    # A child keeps to one core, because requests come first. BLAS reads these when numpy is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.putenv(name, "1")
    from service_kit import collector

    with collector.importing():
        module = importlib.import_module(sys.argv[1])
    module.PROGRAM.run()
