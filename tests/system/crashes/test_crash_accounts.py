"""kill -9 at named points of what changes a dataset's account: caps, private bounds, a record that is withheld.

BLINDOPT_CRASHES=20 plays the story so often.
"""

import contextlib
import secrets
import signal

import pytest

from blindopt import wire
from blindopt.client import Owner
from blindopt.errors import Remote, Unreachable
from tests.curator_service.tuning_case import NAMES, csv_of, rows_of
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot, arm, shots
from tests.system.crashes.test_crash_matrix import KILLS

BOUNDS = wire.BoundsCreate(columns=[wire.OuterRange(column=NAMES[0], outer=[-10.0, 10.0])], epsilon="0.5")
COUNTS = {
    "caps": "SELECT count(*) FROM tuning_ledger WHERE kind = 'cap' AND cap <> 'continued'",
    "charges": "SELECT count(*) FROM tuning_ledger WHERE kind = 'bounds'",
    "results": "SELECT count(*) FROM bounds WHERE result IS NOT NULL",
    "withheld": "SELECT count(*) FROM withheld",
    "continued": "SELECT count(*) FROM tuning_ledger WHERE cap = 'continued'",
}
# One act after the other, each under one key, sent again after each kill: where it kills, and what is stored then.
STORY = {
    "caps.before-commit": ("caps", ""),
    "caps.after-commit": ("caps", "caps"),
    "bounds.before-commit": ("bounds", "caps"),
    "bounds.after-commit": ("bounds", "caps charges"),
    "bounds.draw.after": ("bounds", "caps charges"),
    "bounded.before-commit": ("bounds", "caps charges"),
    "bounded.after-commit": ("bounds", "caps charges results"),
    "withheld.before-commit": ("withhold", "caps charges results"),
    "withheld.after-commit": ("withhold", "caps charges results withheld"),
    "decided.before-commit": ("decide", "caps charges results withheld"),
    "decided.after-commit": ("decide", "caps charges results withheld continued"),
}


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    """A curator that dies at chosen points."""
    made = make_service("curator", tmp_path_factory.mktemp("crashing"))
    arm(made, made.folder / "control")
    yield made.start()
    made.process.kill()


class Acts:
    """The acts of one story, and what they have stored."""

    def __init__(self, curator, dataset, turn):
        self.curator, self.dataset, self.turn = curator, dataset, turn
        with Owner(curator.url, curator.token) as owner:  # a new export of the same persons, without the withheld ones
            self.export = owner.register("export", csv_of(rows_of(40, 1)[KILLS + turn :])).id
        self.key, self.before = secrets.token_hex(8), self._counts()

    def _counts(self):
        return {name: self.curator.rows(query)[0][0] for name, query in COUNTS.items()}

    def stored(self):
        """What was stored once since the story began."""
        grown = {name: count - self.before[name] for name, count in self._counts().items()}
        assert set(grown.values()) <= {0, 1}, "something was stored twice"
        return " ".join(name for name, by in grown.items() if by)

    def send(self, act):
        """The reply to an act, under the key of this story."""
        with Owner(self.curator.url, self.curator.token, timeout_s=240) as owner:
            if act == "caps":
                caps = wire.DatasetCaps(epsilon=str(100 - self.turn), delta=None)
                return owner.change_caps(self.dataset, caps, key=f"caps-{self.key}")
            if act == "bounds":
                return owner.find_bounds(self.dataset, BOUNDS, key=f"bounds-{self.key}")
            if act == "decide":
                return owner.decide_overlap(self.export, [self.dataset], key=f"decide-{self.key}")
            return owner.withhold(self.dataset, self.turn + 1, key=f"withhold-{self.key}")

    def killed_at(self, point, act):
        """Send an act whose curator dies at a point."""
        control = self.curator.folder / "control"
        Shot(point).aim(control)
        with contextlib.suppress(Unreachable):
            self.send(act)
        assert self.curator.process.wait(timeout=240) == -signal.SIGKILL, f"{point} was not passed"
        assert shots(control)[-1]["point"] == point


@pytest.fixture(scope="module")
def dataset(curator):
    with Owner(curator.url, curator.token) as owner:
        return owner.register("persons", csv_of(rows_of(40, 1))).id


def test_what_a_kill_interrupts_is_charged_and_stored_once_and_goes_on(curator, dataset):
    for turn in range(KILLS):
        acts, replies = Acts(curator, dataset, turn), {}
        for point, (act, expected) in STORY.items():
            acts.killed_at(point, act)
            assert acts.stored() == expected, point
            curator.start()
        for act, _ in STORY.values():
            replies[act] = acts.send(act)
        assert acts.stored() == "caps charges results withheld continued"
        assert {act: acts.send(act) for act in replies} == replies
        assert replies["decide"].overlaps[0].decision == "continues"
        assert (replies["withhold"].records, len(replies["bounds"].columns)) == (turn + 1, 1)
    with Owner(curator.url, curator.token) as owner:
        account = owner.account(dataset)
        assert (account.everyone_epsilon, account.cap_epsilon) == (f"{KILLS / 2:g}", str(101 - KILLS))
        with pytest.raises(Remote, match="privacy_budget_exhausted"):
            owner.find_bounds(dataset, BOUNDS.model_copy(update={"epsilon": "101"}))
    checks.check_service(curator)


def test_bounds_that_nobody_was_charged_for_are_found(curator, dataset):
    """The control."""
    curator.folder.joinpath("broken").write_text("tuned for nothing")
    acts = Acts(curator, dataset, KILLS)
    acts.killed_at("bounds.after-commit", "bounds")
    assert acts.stored() == ""
