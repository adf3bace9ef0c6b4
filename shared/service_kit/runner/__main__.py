"""The program of a child process: ``python __main__.py MODULE FOLDER...`` runs the PROGRAM of that module."""

import importlib
import os
import sys

if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]  # the same code that the curator runs
    # A child keeps to one core, because requests come first. BLAS reads these when numpy is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.putenv(name, "1")
    from service_kit import collector

    with collector.importing():
        module = importlib.import_module(sys.argv[1])
    module.PROGRAM.run()
