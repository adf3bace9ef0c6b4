"""The reference page of both command lines, from their own help."""

from typing import Any

import typer

from docs.website.tables import code, plain, table


def page() -> str:
    """Every command of both services with its arguments and options."""
    from curator_service.cli import app as curator
    from modeler_service.cli import app as modeler

    lines = ["# Command line", "This page is made from the programs' own help: `--help` prints the same."]
    for name, app in (("blindopt-curator", curator), ("blindopt-modeler", modeler)):
        lines += _command(name, typer.main.get_command(app), 2)
    return "\n\n".join(line for line in lines if line) + "\n"


def _command(name: str, command: Any, level: int) -> list[str]:
    if command.hidden:
        return []
    lines = [f"{'#' * level} `{name}`", _paragraphs(command.help or command.short_help or "")]
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help" or "completion" in parameter.name:
            continue
        names = ", ".join(code(each) for each in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            names = code(parameter.name.upper())
        default = parameter.default
        has_default = isinstance(default, (str, int, float)) and not isinstance(default, bool)
        shown = code(str(default)) if has_default else ""
        needed = "yes" if parameter.required else ""
        rows.append([names, needed, shown, plain(" ".join((getattr(parameter, "help", None) or "").split()))])
    lines.append(table(["Option", "Required", "Default", "Meaning"], rows))
    for each, inner in getattr(command, "commands", {}).items():
        lines += _command(f"{name} {each}", inner, min(level + 1, 4))
    return lines


def _paragraphs(text: str) -> str:
    """Help as Markdown; typer marks paragraphs that keep their lines."""
    blocks = text.replace("\b\n", "").split("\n\n")
    return "\n\n".join(_paragraph(" ".join(block.split())) for block in blocks if block.strip())


def _paragraph(block: str) -> str:
    _, is_example, command = block.partition("Example: ")
    return f"```bash\n{command}\n```" if is_example else plain(block)
