"""Run the code cells of a notebook in order, as a kernel does: FILE FOLDER. Prints the outputs of each cell as JSON.

An output has ``text``, ``html`` or ``svg``, the name of a picture that is written into FOLDER. It needs nothing but
the standard library, so that it runs wherever the notebook's own imports do.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(path: Path, folder: Path) -> list[list[dict[str, str]]]:
    """Run each cell; the value of its last expression is shown as a notebook shows it, then each figure."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        outputs: list[dict[str, str]] = []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            value = _last_value(source, f"{path.name}, code cell {number}", names)
        if printed.getvalue():
            outputs.append({"text": printed.getvalue()})
        if value is not None and not source.rstrip().endswith(";"):
            html = getattr(value, "_repr_html_", None)
            outputs.append({"text": repr(value)} if html is None else {"html": html()})
        shown.append(outputs + [{"svg": name} for name in _figures(folder, f"{path.stem}-{number}")])
    return shown


def _last_value(source: str, where: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(source, where)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, where, "exec"), names)  # noqa: S102
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307


def _figures(folder: Path, name: str) -> list[str]:
    """Write each open figure and close it, as a notebook does at the end of a cell."""
    if (plt := sys.modules.get("matplotlib.pyplot")) is None:
        return []
    written = []
    for number in plt.get_fignums():
        written.append(f"{name}-{number}.svg")
        with plt.rc_context({"svg.hashsalt": name}):
            plt.figure(number).savefig(
                folder / written[-1], bbox_inches="tight", transparent=True, metadata={"Date": None}
            )
    plt.close("all")
    return written


if __name__ == "__main__":
    json.dump(run(Path(sys.argv[1]), Path(sys.argv[2])), sys.stdout)
