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
    found = {name: sum(len(pattern.findall(text)) for text in prose) for name, pattern in PATTERNS.items()}
    found["inverted"] = sum(bool(INVERTED.match(sentence)) for sentence in sentences(page))
    return {name: number for name, number in found.items() if number}


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
MAIN_PATH_WORDS = 10_000

WORDS = {
    "README.md": 450,
    "shared/README.md": 160,
    "docs/algorithms.md": 780,
    "docs/api-policy.md": 320,
    "docs/data-protection.md": 560,
    "docs/developers/architecture.md": 1250,
    "docs/developers/decisions.md": 940,
    "docs/developers/index.md": 140,
    "docs/developers/mutants.md": 550,
    "docs/developers/performance.md": 950,
    "docs/developers/release.md": 190,
    "docs/developers/testing.md": 690,
    "docs/docker.md": 520,
    "docs/faq.md": 290,
    "docs/glossary.md": 800,
    "docs/how-good.md": 580,
    "docs/how-many-queries.md": 250,
    "docs/howto/answer-for-the-data.md": 680,
    "docs/howto/audit-log.md": 1090,
    "docs/howto/back-up-and-restore.md": 640,
    "docs/howto/bring-your-data.md": 900,
    "docs/howto/choose-epsilon.md": 640,
    "docs/howto/choose-hyper-parameters.md": 620,
    "docs/howto/connect.md": 1210,
    "docs/howto/forecasts.md": 720,
    "docs/howto/from-python.md": 570,
    "docs/howto/groups.md": 750,
    "docs/howto/install.md": 390,
    "docs/howto/large-data.md": 710,
    "docs/howto/lost.md": 340,
    "docs/howto/notices.md": 700,
    "docs/howto/own-loop.md": 480,
    "docs/howto/people-measure.md": 690,
    "docs/howto/postgresql.md": 780,
    "docs/howto/proxies.md": 340,
    "docs/howto/steer-a-run.md": 1110,
    "docs/howto/troubleshooting.md": 1360,
    "docs/howto/upgrade.md": 200,
    "docs/howto/users-and-tokens.md": 550,
    "docs/howto/work-with-a-vendor.md": 520,
    "docs/index.md": 200,
    "docs/install.md": 340,
    "docs/limits.md": 400,
    "docs/operations.md": 1760,
    "docs/owner.md": 1050,
    "docs/privacy-in-two-pages.md": 1140,
    "docs/privacy.md": 9010,
    "docs/protocol.md": 4190,
    "docs/quickstart.md": 230,
    "docs/security.md": 280,
    "docs/threat-model.md": 1130,
    "docs/tuning.md": 2890,
    "docs/two-ideas.md": 650,
    "docs/vendor.md": 650,
    "docs/what-is-blindopt.md": 450,
    "CONTRIBUTING.md": 410,
    "CHANGELOG.md": 770,
}
"""The most words of each page, as `wc -w` counts them. Raise one only if another page loses as many."""

USERS = {
    "shared/README.md": {"inverted": 2},
    "docs/glossary.md": {"row": 2, "y": 1},
    "docs/howto/audit-log.md": {"row": 3, "lost": 1},
    "docs/howto/back-up-and-restore.md": {"lost": 3},
    "docs/howto/connect.md": {"lost": 1, "semicolon": 1},
    "docs/howto/lost.md": {"lost": 1},
    "docs/howto/notices.md": {"lost": 1},
    "docs/howto/troubleshooting.md": {"row": 1, "spent": 3, "lost": 1, "semicolon": 2, "translated": 2, "inverted": 6},
    "docs/howto/upgrade.md": {"row": 1},
    "docs/operations.md": {"inverted": 1},
    "docs/privacy.md": {"row": 4, "y": 22, "lost": 13, "semicolon": 13, "translated": 3, "inverted": 12},
    "docs/protocol.md": {"row": 1, "lost": 2, "semicolon": 13, "inverted": 5},
    "docs/security.md": {"row": 1, "inverted": 1},
    "docs/threat-model.md": {"row": 2},
    "docs/tuning.md": {"semicolon": 7, "translated": 1, "inverted": 2},
}
"""What pages for users still have of each pattern. These numbers only fall."""
CONTRIBUTORS = {
    "docs/developers/architecture.md": {"semicolon": 3},
    "docs/developers/decisions.md": {"row": 1, "lost": 2, "inverted": 1},
    "docs/developers/mutants.md": {"semicolon": 2},
    "docs/developers/performance.md": {"row": 1, "semicolon": 8, "inverted": 1},
    "docs/developers/testing.md": {"row": 1},
    "CHANGELOG.md": {"row": 1, "inverted": 1},
}
"""The same of pages for contributors, and of the changelog."""
