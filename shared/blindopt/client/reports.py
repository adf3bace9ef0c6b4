"""What a curator reports to an owner, shown as tables."""

from itertools import cycle
from typing import TYPE_CHECKING

from blindopt import wire
from blindopt.client.plots import COLOURS, new_axes
from blindopt.display import Shown, Table, facts, frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Check(Shown, wire.StudyCheck):
    """What a draft promises and costs, from public values.

    >>> print(draft.check().guarantee)  # doctest: +SKIP
    """

    def _tables(self) -> list[Table]:
        return [
            facts(
                {
                    "Guarantee": self.guarantee,
                    "Protection": self.protection,
                    "How sure anyone can become": self.belief,
                    "Price": self.price.sentence,
                    "Search": self.search,
                    "Tool": self.tool and f"{self.tool.name.replace('_', ' ')}. {self.tool.why}",
                    "Answers": " ".join(self.answers_mean.sentences) if self.answers_mean else None,
                    "Cautions": _cautions(self),
                }
            )
        ]


def _cautions(report: wire.StudyCheck | wire.ReleaseReport) -> list[str]:
    return [caution.message for caution in (*report.cautions, *report.record_cautions)] or ["none"]


class Preview(Shown, wire.ReleaseReport):
    """Attacks on a trial release. It is made from the records: do not pass it on.

    >>> print(draft.preview().verdict.sentence)  # doctest: +SKIP
    """

    def _tables(self) -> list[Table]:
        rows = [[finding.level, finding.sentence] for finding in self.attacks]
        caption = self.verdict.sentence if self.verdict is not None else "No attack was tried."
        values: dict[str, object] = {"Price": self.price.sentence, "Cautions": _cautions(self)}
        others = {"Not tried": self.not_tried} if self.not_tried else {}
        return [Table(["Risk", "What an attack gets"], rows, caption), facts(values | others)]


class Groups(Shown, list[wire.GroupEntry]):
    """The groups of a study: a list, printed with those first that are expected to be the best.

    >>> place = {"row": 3, "count": 52, "centre": [0.5], "lower": None, "upper": None, "spent": "0.5"}
    >>> answered = wire.GroupEntry(**place, y=2.1, sd=0.4, expected=1.9, recommended=True)
    >>> print(Groups([answered]))
    Group 3 is expected to be the best.
    Candidate  Middle  Records  Answer  Noise (sd)  Expected
    3          0.5     52       2.1     0.4         1.9
    """

    def _tables(self) -> list[Table]:
        best = [group for group in self if group.recommended]
        at = best[0].expected or 0 if best else 0
        head = ["Candidate", "Middle", "Records", "Answer", "Noise (sd)", "Expected"]
        rows = [
            [group.row, ", ".join(f"{x:.5g}" for x in group.centre), group.count, group.y, group.sd, group.expected]
            for group in sorted(self, key=lambda group: abs((group.expected or 0) - at))
        ]
        return [Table(head, rows, f"Group {best[0].row} is expected to be the best." if best else "")]


class Group(Shown, wire.GroupView):
    """A group that was opened, with its records.

    >>> place = {"row": 3, "count": 3, "centre": [0.5], "lower": [0.0], "upper": [1.0], "spent": "0.5"}
    >>> print(Group(**place, study_id="std_1", size=2, mean=6.5, records=[4, 7]))
    Candidate           3
    Place               0 to 1
    Records             2
    Noisy number        3
    True mean outcome   6.5
    Numbers of records  4, 7
    """

    def _tables(self) -> list[Table]:
        where = self.centre if self.lower is None or self.upper is None else zip(self.lower, self.upper, strict=True)
        places = [f"{at[0]:.6g} to {at[1]:.6g}" if isinstance(at, tuple) else f"{at:.6g}" for at in where]
        values = {"Candidate": self.row, "Place": "; ".join(places), "Records": self.size, "Noisy number": self.count}
        return [
            facts(values | {"True mean outcome": self.mean, "Numbers of records": ", ".join(map(str, self.records))})
        ]


class Forecast(Shown, wire.ForecastView):
    """Simulated quality at several levels of epsilon.

    >>> axes = draft.forecast([0.5, 1], functions=4, queries=8).plot()  # doctest: +SKIP
    """

    _HEAD = ("mechanism", "epsilon", "regret", "low", "high", "better_than_chance")
    _SCALES = ("Rough", "Middle", "Smooth")

    @property
    def frame(self) -> "pd.DataFrame":
        """A DataFrame with a line for each point. Raises ExtraMissing without pandas."""
        return frame([point.model_dump() for point in self.points], self._HEAD)

    def _tables(self) -> list[Table]:
        banded = all(len(point.gaps) == len(self._SCALES) for point in self.points)
        head = self._SCALES if banded else ("Regret",)
        rows = [
            [point.mechanism, point.levels, *(point.gaps if banded else [point.regret]), point.better]
            for point in self.points
        ]
        return [Table(["Mechanism", "epsilon", *head, "Better than random records"], rows)]

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Plot regret by epsilon on ``axes``, and baselines as lines. Raises ExtraMissing.

        The bar of a point reaches over its length-scales. With a single one it is the 95 % interval.
        """
        axes = new_axes(axes)
        kinds = dict.fromkeys((point.mechanism, point.refine_epsilon) for point in self.points)
        for (name, second), colour in zip(kinds, cycle(COLOURS), strict=False):
            points = [point for point in self.points if (point.mechanism, point.refine_epsilon) == (name, second)]
            regret = [point.regret for point in points]
            if points[0].epsilon is None or name == "groups_at_once":
                axes.axhline(regret[0], color=colour, linestyle="--", label=name.replace("_", " "))
                continue
            ends = [(min(p.gaps), max(p.gaps)) if len(p.gaps) > 1 else (p.low, p.high) for p in points]
            reach = [
                [max(r - low, 0.0) for r, (low, _) in zip(regret, ends, strict=True)],
                [max(high - r, 0.0) for r, (_, high) in zip(regret, ends, strict=True)],
            ]
            epsilons = [float(point.epsilon or 0) for point in points]
            label = name if second is None else f"{name}, then {second}"
            axes.errorbar(epsilons, regret, yerr=reach, fmt="o-", capsize=3, color=colour, label=label)
        axes.set_xscale("log")
        levels = sorted({float(p.epsilon) for p in self.points if p.epsilon and p.mechanism != "groups_at_once"})
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.minorticks_off()
        of_groups = any(point.mechanism == "groups" for point in self.points)
        axes.set_title("Simulated quality of a search")
        axes.set_xlabel("epsilon of a record in total" if of_groups else "epsilon of the release")
        axes.set_ylabel("regret, in sd of the outcome")
        axes.legend()
        return axes


class StudyAccount(Shown, wire.StudyAccount):
    """What a study has spent, beside its caps.

    >>> print(study.account().row_epsilon)  # doctest: +SKIP
    """

    def _tables(self) -> list[Table]:
        caps = self.budget
        rows: list[list[object]] = [
            ["epsilon of a record", self.row_epsilon or "no finite bound", caps.epsilon_per_row or "no cap"],
            ["epsilon in total", self.total_epsilon or "no finite bound", caps.epsilon_total or "no cap"],
            ["measurements", self.total_plays, caps.queries or "no cap"],
        ]
        return [Table(["", "Used", "Cap"], rows, self.name)]


class DatasetAccount(Shown, wire.DatasetAccount):
    """What all uses of a file have cost its records.

    >>> print(dataset.account().sentence)  # doctest: +SKIP
    """

    def _tables(self) -> list[Table]:
        rows: list[list[object]] = [
            ["epsilon", self.epsilon or "no finite bound", self.cap_epsilon or "no cap"],
            ["delta", self.delta, self.cap_delta or "no cap"],
        ]
        return [Table(["", "Used", "Cap"], rows, self.sentence)]
