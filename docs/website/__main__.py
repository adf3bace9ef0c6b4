"""`python -m docs.website [FOLDER]`: build the documentation site into FOLDER/site (default: out/site)."""

import sys
from pathlib import Path

from docs.website.build import build

if __name__ == "__main__":
    site = build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out"))
    print(f"built {sum(1 for _ in site.rglob('*.html'))} pages: python3 -m http.server -d {site}")
