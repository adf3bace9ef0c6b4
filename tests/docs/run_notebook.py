"""Run the code cells of a notebook in order, as a kernel does, and print what it would display: FILE.

It needs nothing but the standard library, so that it runs wherever the notebook's own imports do.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any


def run(path: Path) -> None:
    """Run each cell; the value of its last expression is shown as a notebook shows it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        where = f"{path.name}, code cell {number}"
        tree = ast.parse("".join(cell["source"]), where)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if value is not None:
                print(getattr(value, "_repr_html_", value.__repr__)())


if __name__ == "__main__":
    run(Path(sys.argv[1]))
