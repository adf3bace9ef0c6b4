"""What makes a page hard to read, and how much of it, and how many words, each page has at most."""

import re

from tests.docs.prose import passages, sentences

PATTERNS = {
    "row": re.compile(r"\brows?\b(?! groups?\b)", re.IGNORECASE),
    "y": re.compile(r"(?<![\w.'-])y(?![\w.'-])"),
    "ask": re.compile(
        r"\b(?:asks?|asked|asking)\b(?! (?:the (?:owner|person|administrator|vendor)|for|you|an optimization firm)\b)",
        re.IGNORECASE,
    ),
    "spent": re.compile(r"\b(?:spen[dt]s?|spending)\b", re.IGNORECASE),
    "lost": re.compile(r"\b(?:los[et]|loses|losing)\b", re.IGNORECASE),
    "semicolon": re.compile(r";"),
    "translated": re.compile(
        r"\b(?:in all|besides|at hand|as a whole|once more|of now|of then|meanwhile)\b", re.IGNORECASE
    ),
}
"""Words that have a better one in the glossary, and joints that hold two sentences together."""
INVERTED = re.compile(r"(?:No(?![.:,])|Nothing|Nobody|None|Neither|Whoever|Such|Where|Who|What)\b(?!.*\?$)")
"""How a sentence begins whose reader waits for its subject. Questions may begin so."""


def counts(page: str) -> dict[str, int]:
    """How often each pattern is in the prose of a page: not in code, tables or headings."""
    prose = passages(page)
    numbers = {name: sum(len(pattern.findall(text)) for text in prose) for name, pattern in PATTERNS.items()}
    numbers["inverted"] = sum(bool(INVERTED.match(sentence)) for sentence in sentences(page))
    return {name: number for name, number in numbers.items() if number}


MAIN_PATH = (
    "README.md",
    *(
        f"docs/{page}.md"
        for page in (
            *("index", "what-is-blindopt", "quickstart", "install", "faq", "how-good", "how-many-queries"),
            *("data-protection", "privacy-in-two-pages", "owner", "vendor"),
            *("howto/bring-your-data", "howto/choose-epsilon", "howto/groups", "howto/people-measure"),
            *("howto/work-with-a-vendor", "howto/answer-for-the-data"),
        )
    ),
)
"""The pages from a first look to a study that is answered for."""
MAIN_PATH_WORDS, DOCS_WORDS = 10_000, 45_000

WORDS = {
    "README.md": 450,
    "shared/README.md": 160,
    "docs/algorithms.md": 830,
    "docs/api-policy.md": 320,
    "docs/data-protection.md": 630,
    "docs/developers/architecture.md": 1240,
    "docs/developers/decisions.md": 739,
    "docs/developers/index.md": 130,
    "docs/developers/mutants.md": 240,
    "docs/developers/performance.md": 340,
    "docs/developers/release.md": 190,
    "docs/developers/testing.md": 710,
    "docs/docker.md": 510,
    "docs/faq.md": 270,
    "docs/glossary.md": 770,
    "docs/how-good.md": 600,
    "docs/how-many-queries.md": 250,
    "docs/howto/answer-for-the-data.md": 760,
    "docs/howto/audit-log.md": 900,
    "docs/howto/back-up-and-restore.md": 630,
    "docs/howto/bring-your-data.md": 860,
    "docs/howto/choose-epsilon.md": 640,
    "docs/howto/choose-hyper-parameters.md": 620,
    "docs/howto/connect.md": 1110,
    "docs/howto/forecasts.md": 650,
    "docs/howto/from-python.md": 650,
    "docs/howto/groups.md": 750,
    "docs/howto/install.md": 380,
    "docs/howto/large-data.md": 710,
    "docs/howto/lost.md": 340,
    "docs/howto/notices.md": 620,
    "docs/howto/own-loop.md": 480,
    "docs/howto/people-measure.md": 690,
    "docs/howto/postgresql.md": 770,
    "docs/howto/proxies.md": 330,
    "docs/howto/steer-a-run.md": 1230,
    "docs/howto/troubleshooting.md": 1290,
    "docs/howto/upgrade.md": 200,
    "docs/howto/users-and-tokens.md": 480,
    "docs/howto/work-with-a-vendor.md": 520,
    "docs/index.md": 200,
    "docs/install.md": 340,
    "docs/limits.md": 370,
    "docs/operations.md": 1220,
    "docs/owner.md": 1050,
    "docs/privacy-in-two-pages.md": 1140,
    "docs/privacy.md": 8200,
    "docs/protocol.md": 3570,
    "docs/quickstart.md": 230,
    "docs/security.md": 280,
    "docs/threat-model.md": 1342,
    "docs/tuning.md": 2340,
    "docs/two-ideas.md": 650,
    "docs/vendor.md": 650,
    "docs/what-is-blindopt.md": 450,
    "CONTRIBUTING.md": 410,
    "CHANGELOG.md": 1_000,
}
"""The most words of each page, as `wc -w` counts them. Raise one only if another page loses as many."""

USERS = {
    "shared/README.md": {"inverted": 2},
    "docs/privacy.md": {"row": 1, "y": 22, "lost": 13, "semicolon": 4},
}
"""What pages for users still have of each pattern. These numbers only fall."""
CONTRIBUTORS = {
    "CHANGELOG.md": {"row": 1},
}
"""The same of pages for contributors, and of the changelog."""
