"""`python -m docs.website [FOLDER] [--quick]`: build the documentation site into FOLDER/site (default: out/site)."""

import argparse
from pathlib import Path

from docs.website.build import build

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.website", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("out"), help="default: out")
    parser.add_argument("--quick", action="store_true", help="leave out what needs running services")
    options = parser.parse_args()
    site = build(options.folder, quick=options.quick)
    print(f"built {sum(1 for _ in site.rglob('*.html'))} pages: python3 -m http.server -d {site}")
