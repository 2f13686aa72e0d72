"""checkov judges what the charts and the operator make; what it finds is mended or explained."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.manifests import cluster, naming

from tests.operator.charts import CLUSTER, OPERATOR, ROOT, release_tool, render
from tests.operator.manifests.test_manifests import all_on
from tests.operator.packaging.test_charts import MATRIX

CONFIG = ROOT / "charts" / "checkov.yaml"
DIGEST = "sha256:" + "0" * 64
#: Of all checks, those that are explained included.
SCORE_MIN = 0.95

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def judged(
    folder: Path, rendered: dict[str, list[dict[str, Any]]]
) -> tuple[int, dict[str, set[str]]]:
    """How many checks passed, and whom each failed one is about; nothing is skipped."""
    manifests = folder / "manifests"
    manifests.mkdir()
    for name, items in rendered.items():
        (manifests / f"{name}.yaml").write_text(yaml.safe_dump_all(items))
    config = yaml.safe_load(CONFIG.read_text())
    del config["skip-check"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [release_tool("checkov"), "--config-file", str(folder / "config.yaml")]
    command += ["--skip-download", "--directory", str(manifests), "--output", "json"]
    done = subprocess.run(
        command,
        text=True,
        capture_output=True,
        timeout=300,
        env=os.environ | {"LOG_LEVEL": "ERROR"},
    )
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    failed: dict[str, set[str]] = {}
    for check in report["results"]["failed_checks"]:
        failed.setdefault(check["check_id"], set()).add(f"{check['file_path']} {check['resource']}")
    assert report["summary"]["failed"] == len(report["results"]["failed_checks"])
    score = report["summary"]["passed"] / (
        report["summary"]["passed"] + report["summary"]["failed"]
    )
    print(report["summary"], f"{100 * score:.1f} %")
    assert score >= SCORE_MIN
    return report["summary"]["passed"], failed


def test_checkov_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    """SEC-29. Images by digest, as the charts' READMEs recommend."""
    digests = {name: {"digest": DIGEST} for name in ("operator", "broker", "telemetry")}
    rendered = {
        name: render(OPERATOR, {**values, "images": {**digests, **values.get("images", {})}})
        for name, values in MATRIX.items()
    }
    rendered["cluster"] = render(CLUSTER, {"cluster": {"image": f"brokerd@{DIGEST}"}})
    images = naming.Images(f"brokerd@{DIGEST}", f"brokerd-telemetry@{DIGEST}")
    members = dataclasses.replace(all_on(), images=images, image=images.broker)
    rendered["members"] = cluster.objects(members)
    passed, failed = judged(tmp_path, rendered)
    # An empty rendering would pass, too.
    assert passed > 900
    explained = yaml.safe_load(CONFIG.read_text())["skip-check"]
    assert {key: where for key, where in failed.items() if key not in explained} == {}
    assert set(explained) == set(failed), "an explanation of what no longer happens"


def test_each_explanation_stands_above_its_check() -> None:
    lines = CONFIG.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("- "):
            before = lines[number - 1]
            assert before.startswith(("#", "- ")), f"{line} has no reason"
