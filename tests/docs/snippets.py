"""Every fenced block of the documents, and which of them are run."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "shared/README.md", *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md"))))
OWNER = (
    *("docs/owner.md", "docs/howto/choose-hyper-parameters.md", "docs/howto/answer-for-the-data.md"),
    "docs/howto/people-measure.md",
)
VENDOR = ("docs/vendor.md", "docs/howto/steer-a-run.md", "docs/howto/own-loop.md")
"""Their blocks of bash are one script each, in this order: ``test_walkthrough`` runs both."""
COMMANDS = ("docs/operations.md", "docs/howto/back-up-and-restore.md", "docs/howto/install.md")
"""Each line of these is a command of a service: ``test_walkthrough`` runs them too."""
GRANT = "grant.json"
"""Blocks of Python that name this file need services: ``test_walkthrough`` runs them."""
LIBRARY = "dataset.study("
"""Those with this need an owner's library: its test, ``test_owner``, runs them."""


@dataclass(frozen=True)
class Block:
    """A fenced block; ``reason`` says why it is not run."""

    document: str
    language: str
    text: str
    reason: str


def blocks(document: str) -> list[Block]:
    """All fenced blocks of a document with a language."""
    marked = r"^(?:<!-- not run: ([^>]+) -->\n)?```(\w+)\n(.*?)^```$"
    pairs = re.findall(marked, (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    return [Block(document, language, text, reason) for reason, language, text in pairs]


def run_blocks(document: str, language: str) -> list[Block]:
    """Those that a test has to run."""
    return [block for block in blocks(document) if block.language == language and not block.reason]


def alone(document: str) -> list[Block]:
    """Those of Python that need no service."""
    return [
        block for block in run_blocks(document, "python") if not any(name in block.text for name in (GRANT, LIBRARY))
    ]
