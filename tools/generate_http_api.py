"""Writes the table of endpoints into docs/http-api.md, from the management API's own table.

    python tools/generate_http_api.py [--check]

A test runs `--check`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from brokerd.server.management import reference  # noqa: E402
from brokerd.server.management.table import TABLE  # noqa: E402

PAGE = ROOT / "docs" / "http-api.md"
BEGIN = "<!-- begin: tools/generate_http_api.py -->\n"
END = "<!-- end: tools/generate_http_api.py -->"


def main() -> int:
    """Write the page, or with --check say whether it is as it would be written."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = before + BEGIN + "\n" + reference.markdown(TABLE.routes) + "\n" + END + after
    if "--check" in sys.argv:
        return 0 if made == text else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
