"""The two Helm charts as the project's own Helm renders them, and the programs that judge them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster_fixtures import BIN, require_binaries

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "charts" / "brokerd-operator"
CLUSTER = ROOT / "charts" / "brokerd-cluster"


def release_tool(name: str) -> str:
    """A program of requirements/release.txt; the first call after a change installs it."""
    done = subprocess.run(
        ["bash", str(ROOT / "tools" / "release_tools.sh")],
        text=True,
        capture_output=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return str(Path(done.stdout.strip()) / name)


def helm(*args: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    require_binaries()
    command = [str(BIN / "helm"), *args]
    if values is not None:
        command += ["--values", "-"]
    return subprocess.run(
        command, input=json.dumps(values or {}), text=True, capture_output=True, timeout=120
    )


def render(chart: Path, values: dict[str, Any], name: str = "r") -> list[dict[str, Any]]:
    """All objects of a chart, its tests included."""
    done = helm("template", name, str(chart), "--namespace=brokerd-system", values=values)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def of_kind(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in items if item["kind"] == kind]


def is_of_uninstallation(item: dict[str, Any]) -> bool:
    """What Helm makes when a release is deleted; it has an account of its own."""
    hook = (item["metadata"].get("annotations") or {}).get("helm.sh/hook")
    return hook in ("pre-delete", "post-delete")
