"""Faults of a file, by column and kind: where the first is, and how many there are. Never a value."""

from dataclasses import dataclass, field

from blindopt.errors import DatasetInvalid

ERRORS_SHOWN = 50
_TEXT = "not a number"
_NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest size of a dataset, and how many bytes its file may hold when it is unpacked."""

    rows: int
    columns: int
    unpacked: int = 1 << 30


@dataclass(slots=True)
class Findings:
    """The faults of a file: for each kind in each column the place of the first, and their number if it is not 1."""

    kept: dict[tuple[object, str], dict[str, object]] = field(default_factory=dict)
    total: int = 0

    def add(self, message: str, **where: object) -> None:
        """Count a fault at a row, line and column."""
        self.total += 1
        kind = (where.get("column"), message)
        if kind in self.kept:
            self.kept[kind]["count"] = int(str(self.kept[kind].get("count", 1))) + 1
        elif len(self.kept) < ERRORS_SHOWN:
            self.kept[kind] = {"message": message, **where}

    def raise_any(self) -> None:
        """Raise DatasetInvalid if there is any fault."""
        if self.total:
            errors = list(self.kept.values())
            raise DatasetInvalid(f"{self._summary(errors)}; nothing was stored", errors, self.total)

    def _summary(self, errors: list[dict[str, object]]) -> str:
        noun = "error" if self.total == 1 else "errors"
        summary = f"{self.total} {noun} in the file"
        if len(errors) < self.total:
            summary += f" of {len(errors)} kinds" if len(errors) > 1 else ", all alike"
        wrong = [str(e["column"]) for e in errors if str(e["message"]).startswith(_TEXT) and "column" in e]
        texts = list(dict.fromkeys(wrong))  # a column may have faults of several kinds
        if texts:
            named = ", ".join(f"`{name}`" for name in texts[:_NAMES_SHOWN])
            more = f" and {len(texts) - _NAMES_SHOWN} more" if len(texts) > _NAMES_SHOWN else ""
            verb = "holds" if len(texts) == 1 else "hold"
            summary += f": {named}{more} {verb} cells that are not numbers: leave them out, or encode them"
        return summary


def refuse(message: str, **where: object) -> DatasetInvalid:
    """The error for a file with one fault that stops the reading."""
    end = " Nothing was stored." if message.endswith("?") else "; nothing was stored"
    return DatasetInvalid(f"{message}{end}", [{"message": message, **where}], 1)


def too_large(limit: int) -> DatasetInvalid:
    """The error for a file that holds more than ``limit`` bytes."""
    return refuse(f"the file holds more than {limit:,} bytes when unpacked")
