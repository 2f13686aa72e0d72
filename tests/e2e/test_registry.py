"""The images in a real registry: pushed as a release does it, and pulled by digest."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.cluster_fixtures import BUILD_TIMEOUT_S, IMAGES, run_script
from tests.registry import registry

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1200)]

MANIFESTS = ", ".join(
    (
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
    )
)


def fetched(url: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"Accept": MANIFESTS})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_images_are_pushed_and_named_by_digest(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as host:
        done = run_script(
            "images.sh", "push", f"{host}/team", "1.2.3", *IMAGES, timeout_s=BUILD_TIMEOUT_S
        )
        lines = done.stdout.split()
        assert len(lines) == len(IMAGES)
        for line, tag in zip(lines, IMAGES.values(), strict=True):
            name = tag.removeprefix("localhost/").partition(":")[0]
            found = re.fullmatch(rf"{re.escape(host)}/(team/{name})@(sha256:[0-9a-f]{{64}})", line)
            assert found is not None, line
            base = f"http://{host}/v2/{found[1]}"
            manifest = fetched(f"{base}/manifests/{found[2]}")
            assert manifest == fetched(f"{base}/manifests/1.2.3")
            config = manifest["config"]
            assert isinstance(config, dict)
            image = fetched(f"{base}/blobs/{config['digest']}")
            assert isinstance(image["config"], dict)
            assert image["config"]["User"] == "10001:10001"
            assert image["config"]["Labels"]["org.opencontainers.image.title"] == name
