"""Notebooks as pages: text, code, and the outputs that they were saved with."""

import json
from pathlib import Path
from typing import Any


def render_all(notebooks: Path, pages: Path) -> None:
    """Write a page for each notebook of a folder; nothing where there are none."""
    for path in sorted(notebooks.glob("*.ipynb")):
        pages.mkdir(exist_ok=True)
        page = render(json.loads(path.read_text()))
        source = f"*This page is a notebook: run it from `docs/notebooks/{path.name}`.*"
        head, _, rest = page.partition("\n")
        (pages / f"{path.stem}.md").write_text(f"{head}\n\n{source}\n{rest}")


def render(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown. Of the outputs, text and SVG pictures are shown."""
    parts = []
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(f"```python\n{source}\n```")
            parts += [text for output in cell.get("outputs", []) if (text := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        png = "".join(_text(data["image/png"]).split())
        return f'<img alt="The plot that the cell above draws" src="data:image/png;base64,{png}">'
    text = _text(output.get("text") or data.get("text/plain") or "").rstrip()
    return f"```text\n{text}\n```" if text else ""


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
