"""The OLM bundle: made from CRDs, chart and examples, and judged by OLM's own validators."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.specs import registry
from brokerd_operator.validation import Admitted, Validator

from tests.cluster_fixtures import BIN, require_binaries
from tests.operator.charts import OPERATOR, ROOT, of_kind, render

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

CLUSTER_WIDE = {"watchNamespaces": ["*"]}


def make(out: Path, *args: str) -> subprocess.CompletedProcess[str]:
    require_binaries()
    command = [sys.executable, str(ROOT / "tools" / "bundle.py"), "--out", str(out)]
    command += ["--helm", str(BIN / "helm"), *args]
    return subprocess.run(command, text=True, capture_output=True, timeout=170)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("olm") / "bundle"
    done = make(out)
    assert done.returncode == 0, done.stderr
    return out


def judged(bundle: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "tools" / "olm" / "verify.sh"), str(bundle)],
        text=True,
        capture_output=True,
        timeout=800,
    )


def csv_path(bundle: Path) -> Path:
    (path,) = bundle.glob("manifests/*.clusterserviceversion.yaml")
    return path


def csv(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(csv_path(bundle).read_text())
    return found


def test_every_kind_is_owned_and_has_an_example_that_is_admitted(bundle: Path) -> None:
    made = csv(bundle)
    owned = made["spec"]["customresourcedefinitions"]["owned"]
    assert {item["kind"] for item in owned} == set(registry.KINDS)
    assert all(item["description"] and item["version"] == "v1alpha1" for item in owned)
    present = {path.name for path in (bundle / "manifests").iterdir()}
    assert {f"{item['name']}.yaml" for item in owned} < present
    for path in (ROOT / "crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        written = bundle / "manifests" / f"{crd['metadata']['name']}.yaml"
        assert yaml.safe_load(written.read_text()) == crd
    examples = json.loads(made["metadata"]["annotations"]["alm-examples"])
    assert sorted(item["kind"] for item in examples) == sorted(registry.KINDS)
    validator = Validator.from_directory(ROOT / "crds")
    for item in examples:
        admitted = validator.admit(item, namespace="default")
        assert isinstance(admitted, Admitted), (item["kind"], admitted)


def test_rights_and_pods_are_those_of_the_chart(bundle: Path) -> None:
    """SEC-25, SEC-26: what the chart gives for all namespaces, no more and no less."""
    spec = csv(bundle)["spec"]["install"]["spec"]
    items = render(OPERATOR, CLUSTER_WIDE, name="brokerd")
    (role,) = [
        item
        for item in of_kind(items, "ClusterRole")
        if not item["metadata"]["name"].endswith(("-view", "-edit"))
    ]
    (lease,) = of_kind(items, "Role")
    (deployment,) = of_kind(items, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    (wide,), (own,) = spec["clusterPermissions"], spec["permissions"]
    assert (wide["serviceAccountName"], wide["rules"]) == (account, role["rules"])
    assert (own["serviceAccountName"], own["rules"]) == (account, lease["rules"])
    (made,) = spec["deployments"]
    assert made["spec"]["template"]["spec"] == deployment["spec"]["template"]["spec"]
    (container,) = made["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert env["BROKERD_OPERATOR_WATCH_NAMESPACES"] == "*"
    assert "Helm" not in json.dumps(made)


def test_the_only_install_mode_is_what_the_operator_does(bundle: Path) -> None:
    modes = {item["type"]: item["supported"] for item in csv(bundle)["spec"]["installModes"]}
    assert [mode for mode, is_supported in modes.items() if is_supported] == ["AllNamespaces"]
    assert len(modes) == 4


def test_images_are_those_of_the_values(tmp_path: Path) -> None:
    digest = "sha256:" + "1" * 64
    names = ("operator", "broker", "telemetry")
    values = {"images": {name: {"repository": f"r/{name}", "digest": digest} for name in names}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = make(tmp_path / "bundle", "--values", str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr
    made = csv(tmp_path / "bundle")
    expected = {name: f"r/{name}@{digest}" for name in names}
    related = {item["name"]: item["image"] for item in made["spec"]["relatedImages"]}
    assert related == expected
    assert made["metadata"]["annotations"]["containerImage"] == expected["operator"]


def test_a_folder_that_is_no_bundle_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    done = make(tmp_path)
    assert done.returncode != 0
    assert "no bundle" in done.stderr
    assert (tmp_path / "mine").read_text() == "keep"


@pytest.mark.slow
def test_olms_own_validators_find_nothing(bundle: Path) -> None:
    done = judged(bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "brokerd-operator.v0.1.0: 0 findings" in done.stdout


@pytest.mark.slow
def test_the_validators_see_a_kind_that_is_not_owned(bundle: Path, tmp_path: Path) -> None:
    """They read this bundle, and not some empty folder."""
    broken = tmp_path / "bundle"
    done = make(broken)
    assert done.returncode == 0, done.stderr
    made = csv(broken)
    del made["spec"]["customresourcedefinitions"]["owned"][0]
    csv_path(broken).write_text(yaml.safe_dump(made))
    done = judged(broken)
    assert done.returncode == 1
    assert "is present in bundle" in done.stdout
