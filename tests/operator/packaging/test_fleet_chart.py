"""The operator's chart with telemetryFleet: what the job's pod finds is what the job reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokerd_telemetry import fleet

from tests.operator.charts import OPERATOR, helm, of_kind, render

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

SOURCES: list[dict[str, Any]] = [
    {
        "cluster": "eu/shop",
        "pull": ["shop-0.shop.eu:5680", "shop-1.shop.eu:5680"],
        "credentialsSecret": "shop-login",
        "caSecret": "shop-ca",
    },
    {"cluster": "us/shop", "raw": "s3://telemetry/us"},
]


def test_there_is_no_job_without_sources() -> None:
    assert not of_kind(render(OPERATOR, {}), "CronJob")


def test_the_list_and_the_mounted_secrets_are_what_the_job_reads(tmp_path: Path) -> None:
    """Secrets as the kubelet would lay them out beside the list."""
    items = render(OPERATOR, {"telemetryFleet": {"sources": SOURCES, "store": "s3://t/tables"}})
    (job,) = of_kind(items, "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][3:] == [
        "run",
        "--fleet=/etc/telemetry-fleet/fleet.yaml",
        "--out=/var/lib/telemetry",
        "--store=s3://t/tables",
    ]
    (projected,) = [item["projected"] for item in pod["volumes"] if "projected" in item]
    secrets = {
        "shop-login": {"username": "reader", "password": "hunter2"},
        "shop-ca": {"ca.crt": "PEM"},
    }
    for source in projected["sources"]:
        if "configMap" in source:
            (config,) = of_kind(items, "ConfigMap")
            assert source["configMap"]["name"] == config["metadata"]["name"]
            (tmp_path / "fleet.yaml").write_text(config["data"]["fleet.yaml"])
            continue
        for item in source["secret"]["items"]:
            target = tmp_path / item["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(secrets[source["secret"]["name"]][item["key"]])
    shop, other = fleet.read(tmp_path / "fleet.yaml")
    assert shop.access is not None
    assert (shop.access.user, shop.access.password) == ("reader", "hunter2")
    assert shop.access.addresses == ("shop-0.shop.eu:5680", "shop-1.shop.eu:5680")
    assert shop.access.ca_file is not None
    assert shop.access.ca_file.read_text() == "PEM"
    assert other.place is not None
    assert (other.cluster, other.place.url) == ("us/shop", "s3://telemetry/us")


def test_the_jobs_pod_meets_the_restricted_profile_and_has_no_token() -> None:
    """SEC-29."""
    items = render(OPERATOR, {"telemetryFleet": {"sources": SOURCES}})
    (job,) = of_kind(items, "CronJob")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 10001
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(
    "source",
    [
        {"cluster": "eu/shop"},
        {"cluster": "eu/shop", "pull": ["h:1"], "raw": "s3://b/x"},
        {"cluster": "shop", "pull": ["h:1"]},
        {"cluster": "eu/shop", "raw": "/srv"},
        {"cluster": "eu/shop", "pull": ["h"]},
        {"cluster": "eu/shop", "pull": ["h:1"], "password": "x"},
    ],
)
def test_a_source_that_the_job_would_refuse_is_refused(source: dict[str, Any]) -> None:
    values = {"telemetryFleet": {"sources": [source]}}
    assert helm("template", "r", str(OPERATOR), values=values).returncode != 0
