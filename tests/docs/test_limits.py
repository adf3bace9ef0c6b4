"""The page of limits has the defaults of the settings and the constants of the code."""

import re
from pathlib import Path

from blindopt.wire import base, dataset, release, run
from curator_service.datasets.uploads import PENDING_MAX
from curator_service.privacy.noise.planar import PLANAR_FEATURES_MAX
from curator_service.releases.mechanisms.groups import FEATURES_MAX as GROUPS_FEATURES_MAX
from curator_service.settings import Settings as CuratorSettings
from modeler_service.settings import Settings as ModelerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
CONSTANTS = {
    "categories of a column": {dataset.CATEGORIES_MAX},
    "records of one person": {dataset.ROWS_PER_PERSON_MAX},
    "uploads that wait for a decision": {PENDING_MAX},
    "features of a release with Gaussian noise": {base.FEATURES_MAX},
    "features of a release without delta, and of groups": {PLANAR_FEATURES_MAX, GROUPS_FEATURES_MAX},
    "groups of a study": {release.CELLS_MAX, release.CENTRES_MAX},
    "past measurements of one import": {run.OBSERVATIONS_MAX},
}


def numbers(cell):
    """The numbers of a cell, in bytes where it has a unit."""
    amounts = re.findall(r"(\d[\d,]*)(?: (MiB|GiB))?", cell)
    return [int(number.replace(",", "")) * UNITS.get(unit, 1) for number, unit in amounts]


def test_each_limit_is_the_default_of_its_setting():
    fields = CuratorSettings.model_fields | ModelerSettings.model_fields
    rows = [(cell, re.findall(r"`(\w+)`", settings)) for _, cell, settings in ROWS[1:] if settings]
    assert len(rows) > 12
    for cell, settings in rows:
        defaults = [fields[name.lower()].default for name in settings]
        assert numbers(cell)[: len(defaults)] == defaults[: len(numbers(cell))], settings
    assert numbers("8 GiB") != [fields["upload_limit_bytes"].default]  # the control


def test_each_other_limit_is_a_constant_of_the_code():
    rows = {what: set(numbers(cell)) for what, cell, settings in ROWS[1:] if not settings}
    assert rows == CONSTANTS
