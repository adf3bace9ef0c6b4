"""Notebooks as pages: text, code, and the outputs of running them against real services."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from demo.parties import Party

Outputs = list[list[dict[str, str]]]
"""The outputs of each code cell, in order, as ``run_notebook`` prints them."""


def execute(path: Path, parties: tuple[Party, ...], folder: Path, pictures: Path) -> Outputs:
    """Run a notebook in ``folder``, where earlier ones have left grants and logs. Raises SystemExit if a cell fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BLINDOPT_")}
    environment |= {"MPLBACKEND": "Agg", "PYTHONUTF8": "1"}
    for party in parties:
        token = folder / f"{party.name}-token"
        token.write_text(party.token, encoding="utf-8")
        prefix = f"BLINDOPT_{party.name.upper()}"
        environment |= {f"{prefix}_URL": party.url, f"{prefix}_TOKEN_FILE": str(token)}
        data = {f"{prefix}_DATA_DIR": party.folder}
        log = _run(f"{party.name}_service", "audit", "export", cwd=folder, env=environment | data)
        (folder / f"{party.name}.jsonl").write_text(log, encoding="utf-8")  # an auditor has these
    outputs: Outputs = json.loads(
        _run("docs.website.run_notebook", str(path), str(pictures.resolve()), cwd=folder, env=environment)
    )
    return outputs


def _run(module: str, *arguments: str, cwd: Path, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def page(path: Path, outputs: Outputs | None) -> str:
    """A notebook as Markdown, with the outputs of its cells; None: without."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs_of_cells = iter(outputs or [])
    blocks = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(re.sub(r"\((\S+)\.ipynb\)", r"(\1.md)", source))
        else:
            blocks.append(f"```python\n{source}\n```")
            blocks += [_output(output) for output in next(outputs_of_cells, [])]
    head, _, body = "\n\n".join(blocks).partition("\n")
    return f"{head}\n\n*This page is a notebook: run it from `docs/notebooks/{path.name}`.*\n{body}\n"


def _output(output: dict[str, str]) -> str:
    if "svg" in output:
        return f"![The plot that the cell above draws]({output['svg']}){{ .plot }}"
    if "html" in output:
        html = re.sub(r"<style.*?</style>|\s*\n\s*", "", output["html"], flags=re.DOTALL)
        return f'<div class="outputs">{html}</div>'
    lines = [line.rstrip().rpartition("\r")[2] for line in output["text"].rstrip().splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```"
