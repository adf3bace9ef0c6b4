"""The level of each finding and the verdict on all, by thresholds that are written again here."""

import numpy as np
import pytest

from blindopt import wire
from curator_service.releases import attack_preview
from curator_service.releases.attacks import averaging, known_rows, linkage, membership
from curator_service.releases.attacks.scene import Scene
from curator_service.releases.attacks.trial import ATTACKS
from curator_service.releases.mechanisms.mechanism import Identity
from tests.builders import a_study_of
from tests.curator_service.releases.attacks.attack_data import Simulated, public

# Excess over a blind guess from which a finding is notable, and high; of column_space, the epsilon that it proves.
WRITTEN = {
    "known_rows": (0.05, 0.25),
    "known_rows_noisy": (0.05, 0.25),
    "linkage": (0.05, 0.25),
    "membership": (0.1, 0.25),
    "column_space": (1, 3),
    "averaging": (0.5, 0.9),
}


def finding(attack, success=0.0, blind=0.0, figure=0.0):
    return wire.Finding(
        attack=attack,
        figure=figure,
        low=0,
        high=1,
        confidence=0.95,
        unit="u",
        sentence="So.",
        success=success,
        blind=blind,
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_level_begins_at_its_threshold(attack):
    for at, said in zip(WRITTEN[attack], ("notable", "high"), strict=True):
        for value, level in ((at, said), (at - 1e-9, "low" if said == "notable" else "notable")):
            shown = {"figure": value} if attack == "column_space" else {"success": value}
            assert attack_preview.level(finding(attack, **shown)) == level, (value, level)


def test_what_a_blind_guess_gets_is_no_harm():
    assert attack_preview.level(finding("linkage", success=0.5, blind=0.5)) == "low"
    assert attack_preview.level(finding("membership", success=0.65, blind=0.5)) == "notable"
    assert attack_preview.harm(finding("known_rows", success=0.1, blind=0.4)) == 0


def test_the_most_harmful_finding_is_first_whatever_its_figure():
    few = [finding("linkage", success=0.1), finding("averaging", success=1.0), finding("membership", 0.8, 0.5)]
    assert [f.attack for f in attack_preview.judged(few)] == ["membership", "averaging", "linkage"]
    assert [f.level for f in attack_preview.judged(few)] == ["high", "high", "notable"]


def test_a_verdict_says_what_the_worst_attack_gets():
    assert attack_preview.verdict([]) is None
    high = attack_preview.verdict([finding("linkage", success=0.616, blind=0.001), finding("averaging", success=0.2)])
    assert (high.level, high.sentence) == (
        "high", "High risk: somebody who knows a record finds its candidate in 61.6 % of cases.",
    )  # fmt: skip
    low = attack_preview.verdict([finding("linkage", success=0.01)], complete=False)
    assert low.level == "low"
    assert low.sentence.endswith("A better attack may exist. Not every attack was tried.")
    exact = attack_preview.verdict([finding("averaging", success=1.0)])
    assert exact.sentence == "High risk: the vendor learns the exact outcome of each record that it queries."


def test_a_verdict_says_of_answers_in_noise_without_a_cap_that_the_cap_is_missing(small):
    """Found by hand: it said that the vendor learns the exact outcome, as where answers have no noise."""
    answers = wire.OneBitAnswers(mechanism="one_bit", epsilon="0.5", value_bound=5.0)
    study = a_study_of(small, "ds", wire.AutoRelease(epsilon="3"), answers=answers)
    averaged = averaging.attack(study, np.arange(-4.0, 5.0), np.random.default_rng(3))
    said = attack_preview.verdict([averaged]).sentence
    assert said.startswith("High risk: no cap limits the answers")
    assert "exact outcome" not in said


def test_a_release_without_noise_is_a_high_risk_and_one_in_noise_is_not():
    rng = np.random.default_rng(5)
    x = rng.uniform(-0.5, 0.5, (400, 2))
    loud = Simulated("gaussian", 50.0, rng)
    drowned = x + rng.normal(0, 50.0, x.shape)
    for z, law, mechanism, level in (
        (x, public("none"), Identity(), "high"),
        (drowned, public("gaussian", 50.0), loud, "low"),
    ):
        findings = [
            known_rows.attack(Scene(x, z, law, 400), rng),
            linkage.attack(Scene(x, z, law, 400), z, np.arange(400), rng),
            membership.attack(x, mechanism, law, rng, 400),
        ]
        assert attack_preview.verdict(findings).level == level, [(f.attack, f.success, f.blind) for f in findings]
        assert findings[1].blind == 1 / 400
