"""Copies `crds/` into the chart of the operator, as templates.

Files in a chart's own `crds/` folder are never upgraded by Helm, so they are templates behind
`crds.create` and are kept when the release goes (design/operator.md §16). `crds/` is the source
of truth; a test compares the copies byte by byte.

    python tools/sync_chart_crds.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "crds"
TARGET = ROOT / "charts" / "brokerd-operator" / "templates" / "crds"

HEADER = "{{- /* Made by tools/sync_chart_crds.py from crds/; do not edit. */}}\n"
METADATA = """  annotations:
    helm.sh/resource-policy: keep
    brokerd.io/chart-version: {{ .Chart.Version | quote }}
  labels:
    {{- include "brokerd-operator.labels" . | nindent 4 }}
"""


def rendered(text: str, name: str) -> str:
    """The template of one CRD file."""
    if "{{" in text:
        raise SystemExit(f"{name}: holds {{{{, which Helm would take for a template")
    line = f"  name: {name}.brokerd.io\n"
    if text.count(line) != 1:
        raise SystemExit(f"{name}: no metadata.name {name}.brokerd.io")
    body = text.replace(line, line + METADATA)
    return f"{HEADER}{{{{- if .Values.crds.create }}}}\n{body}{{{{- end }}}}\n"


def expected() -> dict[str, str]:
    """File name to contents of all templates."""
    return {path.name: rendered(path.read_text(), path.stem) for path in SOURCE.glob("*.yaml")}


def stale() -> list[str]:
    """Names of files that are missing, different or too many."""
    wanted = expected()
    present = {path.name: path.read_text() for path in TARGET.glob("*.yaml")}
    names = set(wanted) | set(present)
    return sorted(name for name in names if wanted.get(name) != present.get(name))


def main() -> int:
    names = stale()
    if "--check" in sys.argv[1:]:
        for name in names:
            print(f"stale: {TARGET.relative_to(ROOT) / name}")
        return 1 if names else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    wanted = expected()
    for name in names:
        if name in wanted:
            (TARGET / name).write_text(wanted[name])
        else:
            (TARGET / name).unlink()
    print(f"{len(names)} of {len(wanted)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
