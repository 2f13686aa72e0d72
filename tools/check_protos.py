"""Whether protos/ still fits what was released: `buf breaking` against the last release's tag.

The last release is the first one that CHANGELOG.md has a heading for; its commit has the tag
`vX.Y.Z`.  Before the first release nothing is promised.  What counts as breaking stands in
buf.yaml.  Part of `make lint`.

    python tools/check_protos.py [FOLDER]
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUF = Path(sysconfig.get_path("scripts")) / "buf"
RELEASE = re.compile(r"^## v?(\d+\.\d+\.\d+)\b", re.M)


def main(folder: Path) -> str | None:
    """Return what is wrong, None if nothing is."""
    release = RELEASE.search((folder / "CHANGELOG.md").read_text())
    if release is None:
        return None
    tag = f"v{release[1]}"
    found = subprocess.run(
        ["git", "tag", "--list", tag], cwd=folder, check=True, capture_output=True, text=True
    )
    if not found.stdout:
        return f"protos: the tag {tag} of the last release is missing: git fetch --tags"
    command = [str(BUF), "breaking", "--against", f".git#tag={tag}"]
    done = subprocess.run(command, cwd=folder, check=False)
    return f"protos: a client of {tag} would break" if done.returncode else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
