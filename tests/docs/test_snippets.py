"""Every snippet of Python or a shell is run by a test, or says why it is not."""

import re
from collections import Counter

import numpy as np
import pytest
import typer

from curator_service.cli import app as curator
from modeler_service.cli import app as modeler
from tests.docs.snippets import COMMANDS, DOCUMENTS, OWNER, ROOT, VENDOR, alone, blocks

EVERY = [block for document in DOCUMENTS for block in blocks(document)]
SHELLS = ("bash", "sh")
SHOWN_BY_VERBS = {
    "README.md": 1,  # make test, which runs this, and make demo: tests/demo
    "docs/docker.md": 3,  # a Docker engine: make docker-check
    "docs/quickstart.md": 1,  # make demo: tests/demo
    "docs/howto/install.md": 3,  # root and systemd, or a cluster: make deploy-check, by their own tools
    "docs/privacy.md": 1,  # a transcript: test_privacy_audit.py
    "docs/developers/mutants.md": 2,  # make mutants itself, which takes hours
}
"""How many blocks of a document no test of the gate runs, and what does."""


def names_of(document):
    """What the snippets of a document take as given."""
    if document != "docs/privacy.md":
        return {}
    n, d = 40, 3
    x = np.random.default_rng(1).normal(size=(n, d))
    return {"np": np, "n": n, "d": d, "x": x, "z": x @ np.random.default_rng(2).normal(size=(d, d + 2))}


def test_every_snippet_is_run_or_says_why_not():
    in_scripts = {*OWNER, *VENDOR, *COMMANDS}
    commands = [b for b in EVERY if b.language in SHELLS and not b.reason]
    assert [b for b in commands if not b.runner and b.document not in in_scripts] == []
    assert len(commands) >= 12
    assert Counter(b.document for b in EVERY if b.reason) == SHOWN_BY_VERBS


ALONE = [document for document in DOCUMENTS if alone(document)]


@pytest.mark.parametrize("document", ALONE)
def test_python_runs(document):
    names = names_of(document)
    for block in alone(document):
        exec(compile(block.text, document, "exec"), names)
    if document == "docs/privacy.md":
        np.testing.assert_allclose(names["rebuilt"], names["x"], atol=1e-9)
    if document == "README.md":  # better than as many candidates at random, and nearly the best
        outcomes = names["outcomes"]
        assert names["best"] > max(outcomes[:25].max(), np.quantile(outcomes, 0.99))
    if document == "docs/howto/from-python.md":
        assert names["distance"][names["best"].row] < names["distance"][:20].min() / 3


def test_no_code_is_indented():
    """Such a block has no language, and so no test."""
    for document in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
        assert re.findall(r"(?<=\n\n)    \S.*", prose) == [], document


def test_commands_that_are_named_exist():
    """Also in prose, and in snippets that are not run: the command, and each of its long options."""
    programs = {name: typer.main.get_command(app) for name, app in (("curator", curator), ("modeler", modeler))}
    for document in DOCUMENTS:
        for name, rest in re.findall(r"blindopt-(curator|modeler) ([^`\n|>#]*)", (ROOT / document).read_text()):
            command, words = programs[name], rest.split()
            while words and hasattr(command, "commands") and words[0] in command.commands:
                command = command.commands[words.pop(0)]
            assert not hasattr(command, "commands"), f"{document}: blindopt-{name} {rest}"
            options = {option for parameter in command.params for option in parameter.opts}
            used = set(re.findall(r"(?<![\w-])--[a-z-]+", " ".join(words)))
            assert used - options - {"--help"} == set(), f"{document}: blindopt-{name} {rest}"
