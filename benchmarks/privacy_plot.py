"""Draws docs/plots/privacy-cost.svg from benchmarks/results/privacy_cost.json: `python -m benchmarks.privacy_plot`."""

import json
from math import log2
from pathlib import Path

from benchmarks.privacy_cost import EPSILONS, FILE

TARGET = Path(__file__).parents[1] / "docs" / "plots" / "privacy-cost.svg"
X_MIN, X_MAX, Y_MIN, Y_MAX = 62, 560, 30, 250
RECORDS = "21613"
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1c2733 } .grid { stroke: #d5dce3 } .axis { stroke: #51606f }
.private { stroke: #2f6db3; fill: #2f6db3 } .random { stroke: #c2661a; fill: #c2661a }
.plain { stroke: #1d7f4e; fill: #1d7f4e }
path { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #33404d } .axis { stroke: #a9b6c3 }
.private { stroke: #7db4f0; fill: #7db4f0 } .random { stroke: #f0a35e; fill: #f0a35e }
.plain { stroke: #5fd39a; fill: #5fd39a } }"""


def svg(arms: dict[str, dict[str, float]]) -> str:
    """The plot: regret by epsilon of the private and of the random search, and of the search without privacy."""
    runs = f"{arms['private 1']['runs']:.0f}"
    most = 10 * (int(max(arm["mean"] + arm["error"] for name, arm in arms.items() if name[-1].isdigit())) // 10 + 1)

    def across(epsilon: str) -> float:
        low, high = log2(float(EPSILONS[0])), log2(float(EPSILONS[-1]))
        return X_MIN + 30 + (log2(float(epsilon)) - low) / (high - low) * (X_MAX - X_MIN - 60)

    def up(percent: float) -> float:
        return Y_MAX - percent / most * (Y_MAX - Y_MIN)

    elements = [
        f'<line class="grid" x1="{X_MIN}" x2="{X_MAX}" y1="{up(y):.1f}" y2="{up(y):.1f}"/>' for y in _ticks(most)
    ]
    elements += [f'<text x="{X_MIN - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{y} %</text>' for y in _ticks(most)]
    elements += [f'<text x="{across(e):.1f}" y="{Y_MAX + 18}" text-anchor="middle">{e}</text>' for e in EPSILONS]
    for name, words in (("random", "random search"), ("private", "private search")):
        points = [(across(e), arms[f"{name} {e}"]) for e in EPSILONS]
        path = " L".join(f"{x:.1f} {up(arm['mean']):.1f}" for x, arm in points)
        elements.append(f'<g class="{name}"><path d="M{path}"/>')
        for x, arm in points:
            low, high = up(max(0.0, arm["mean"] - 1.96 * arm["error"])), up(arm["mean"] + 1.96 * arm["error"])
            elements.append(f'<circle cx="{x:.1f}" cy="{up(arm["mean"]):.1f}" r="4" stroke="none"/>')
            elements.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        x, arm = points[-1]
        elements.append(f'</g><text x="{x + 14:.1f}" y="{up(arm["mean"]) - 6:.1f}">{words}</text>')
    plain = up(arms["plain"]["mean"])
    elements.append(
        f'<line class="plain" x1="{X_MIN}" x2="{X_MAX}" y1="{plain:.1f}" y2="{plain:.1f}" stroke-dasharray="6 4"/>'
    )
    elements.append(f'<text x="{X_MAX + 6}" y="{plain + 4:.1f}">without privacy</text>')
    elements.append(f'<line class="axis" x1="{X_MIN}" x2="{X_MAX}" y1="{Y_MAX}" y2="{Y_MAX}"/>')
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 296" role="img" aria-label="Regret by epsilon">',
            f"<style>{STYLE}</style>",
            f'<text x="8" y="16">price of the recommended group below the best (mean of {runs} runs, 95 %)</text>',
            *elements,
            f'<text x="{(X_MIN + X_MAX) / 2}" y="{Y_MAX + 38}" text-anchor="middle">epsilon of a whole record</text>',
            "</svg>\n",
        ]
    )


def _ticks(most: int) -> range:
    return range(0, most + 1, 10)


if __name__ == "__main__":
    TARGET.write_text(svg(json.loads(FILE.read_text(encoding="utf-8"))["records"][RECORDS]), encoding="utf-8")
