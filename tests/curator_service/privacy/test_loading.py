"""The library of tight figures comes by itself, beside the requests; figures do not depend on how or when."""

import gc
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from curator_service.privacy import accounting
from curator_service.privacy.accounting import Pair, distribution_epsilon, tight_epsilon
from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.loading import load

ROOT = Path(__file__).parents[3]
COMPILED = "scipy/signal/_peak_finding_utils"  # a file that the library loads, and nothing else of the service does
PARTS = [Pair("gaussian", 0.27), Pair("laplace", 0.2, 30)]
SCRIPT = """
import json, sys, threading
from decimal import Decimal
from curator_service.privacy import accounting
from curator_service.privacy.accounting import Pair, tight_epsilon
from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.loading import load
from service_kit.background import Background

results = ["dp_accounting" in sys.modules]
def compute():
    results.append(tight_epsilon([Pair("gaussian", 0.27), Pair("laplace", 0.2, 30)], 1e-6))

def calibrated():  # by another name of the library
    results.append(gaussian_sd(Decimal(1), 1e-5, 1.0, 2))

loading = Background("loading", load)
computations = [threading.Thread(target=act) for act in (compute, compute, calibrated)]
threads = [*computations[:2], loading, computations[2]] if sys.argv[1] == "before" else [loading, *computations]
for thread in threads:
    thread.start()
for thread in computations:
    thread.join()
loading.close()
print(json.dumps([*sorted(results), "dp_accounting" in sys.modules]))
"""


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_computation_while_the_library_is_loaded_has_the_same_result(when):
    """In a fresh process: computations that begin before the import beside them, and after."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, when], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")  # nobody failed, either
    tight, sd = tight_epsilon(PARTS, 1e-6), gaussian_sd(Decimal(1), 1e-5, 1.0, 2)
    assert json.loads(done.stdout) == [False, *sorted([tight, tight, sd]), True]


def test_a_service_loads_it_without_being_asked(make_service, tmp_path_factory, until):
    """A new interpreter, for the tests' own forks have it from the start; its files are those that are mapped."""
    service = make_service("curator", tmp_path_factory.mktemp("loading"), fresh=True).start()
    assert until(lambda: COMPILED in Path(f"/proc/{service.process.pid}/maps").read_text(encoding="utf-8"))
    assert service.stop() == 0


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_of_garbage_is_left_as_it_was(collects, monkeypatch):
    monkeypatch.setattr("curator_service.privacy.loading._loaded", False)
    (gc.enable if collects else gc.disable)()
    try:
        load()
        assert gc.isenabled() == collects
    finally:
        gc.enable()


@pytest.mark.parametrize("pair", [Pair("laplace", 0.05, 90), Pair("pure", 0.05, 90), Pair("laplace", 0.4, 20)])
@pytest.mark.parametrize("before", [[], [Pair("gaussian", 0.27)]])
def test_a_composition_made_whole_tells_what_one_without_its_tails_does(pair, before, monkeypatch):
    """But for the mass of the tails: cut off, they count as an infinite loss."""
    whole = distribution_epsilon([*before, pair], 1e-6)
    monkeypatch.setattr(accounting, "_WHOLE", 0)
    cut = distribution_epsilon([*before, pair], 1e-6)
    assert whole != cut  # the control: they were made in two ways
    assert whole == pytest.approx(cut, rel=1e-6)
    assert whole <= cut * (1 + 1e-9)
