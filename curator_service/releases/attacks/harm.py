"""How harmful a finding is: each attack against blind guessing, by public thresholds, and one verdict on all.

The thresholds are constants, so that a level says the same of every study (docs/privacy.md, "What attacks recover").
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from blindopt.wire import Finding, RiskLevel, Verdict
from curator_service.releases.attacks.averaging import ENDLESS
from curator_service.releases.attacks.scene import percent

THRESHOLDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "known_rows": (0.05, 0.25),
        "known_rows_noisy": (0.05, 0.25),
        "linkage": (0.05, 0.25),
        "membership": (0.1, 0.25),
        "column_space": (1.0, 3.0),
        "averaging": (0.5, 0.9),
    }
)
"""By attack, from where on its harm is notable, and high: how much its success exceeds that of a blind guess.

For column_space, the epsilon that the attack proves.
"""
_HEADLINES: Mapping[str, str] = MappingProxyType(
    {
        "known_rows": "somebody who knows a few records rebuilds {share} of the others",
        "known_rows_noisy": "somebody who knows some records roughly rebuilds {share} of the others roughly",
        "linkage": "somebody who knows a record finds its candidate in {share} of cases",
        "membership": "somebody who has a record says correctly in {share} of cases whether it is in the data",
        "column_space": "two values of a record that should look alike are distinguished in {share} of cases",
        "averaging": "the vendor learns outcomes to within {rest} of what it would guess without a query",
    }
)
_LOW = "Low risk: no attack did much better than a blind guess. A better attack may exist."


def harm(finding: Finding) -> float:
    """The harm of a finding on the scale of its attack's thresholds; 0 where the attack did no better than blindly."""
    if finding.attack == "column_space":
        return finding.figure
    return max(0.0, (finding.success or 0.0) - (finding.blind or 0.0))


def level(finding: Finding) -> RiskLevel:
    notable, high = THRESHOLDS[finding.attack]
    return "high" if harm(finding) >= high else "notable" if harm(finding) >= notable else "low"


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their levels, the most harmful first."""

    def of_high(finding: Finding) -> float:
        return harm(finding) / THRESHOLDS[finding.attack][1]

    leveled = [finding.model_copy(update={"level": level(finding)}) for finding in findings]
    ranks = {"low": 0, "notable": 1, "high": 2}
    return sorted(leveled, key=lambda finding: (ranks[level(finding)], of_high(finding)), reverse=True)


def verdict(findings: Sequence[Finding], *, complete: bool = True) -> Verdict | None:
    """The verdict on findings; None without any. ``complete``: whether every attack was tried."""
    if not findings:
        return None
    worst = judged(findings)[0]
    incomplete = "" if complete else " Not every attack was tried."
    if level(worst) == "low":
        return Verdict(level="low", sentence=_LOW + incomplete)
    share = worst.success or 0.0
    said = _HEADLINES[worst.attack].format(share=percent(share), rest=percent(1 - share))
    if worst.attack == "averaging" and share == 1:
        said = "the vendor learns the exact outcome of each record that it queries"
        if ENDLESS in worst.sentence:
            said = "no cap limits the answers, so the vendor can query until it knows an outcome as exactly as it likes"
    grade = level(worst)
    return Verdict(level=grade, sentence=f"{grade.capitalize()} risk: {said}.{incomplete}")
