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
VENDOR = ("docs/vendor.md", "docs/howto/steer-a-run.md")
"""Their blocks of bash are one script each, in this order: ``test_walkthrough`` runs both."""
COMMANDS = tuple(
    f"docs/howto/{page}.md" for page in ("users-and-tokens", "audit-log", "back-up-and-restore", "install")
)
"""Each line of these is a command of a service: ``test_walkthrough`` runs them too."""
GRANT = "grant.json"
"""Blocks of Python that name this file need services: ``test_walkthrough`` runs them."""


@dataclass(frozen=True)
class Block:
    """A fenced block; ``reason`` says why it is not run, ``runner`` is the file of tests that runs it by itself."""

    document: str
    language: str
    text: str
    reason: str
    runner: str


def blocks(document: str) -> list[Block]:
    """All fenced blocks of a document with a language."""
    marked = r"^(?:<!-- (?:not run: ([^>]+)|run by ([^>]+)) -->\n)?```(\w+)\n(.*?)^```$"
    pairs = re.findall(marked, (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    return [Block(document, language, text, reason, runner) for reason, runner, language, text in pairs]


def run_blocks(document: str, language: str) -> list[Block]:
    """Those that a test of all documents has to run."""
    return [b for b in blocks(document) if b.language == language and not b.reason and not b.runner]


def run_by(file: str = "") -> list[Block]:
    """Those that say that this file of tests runs them, or any."""
    return [b for document in DOCUMENTS for b in blocks(document) if b.runner and file in ("", b.runner)]


def alone(document: str) -> list[Block]:
    """Those of Python that need no service."""
    return [block for block in run_blocks(document, "python") if GRANT not in block.text]
