"""Manifests of a BrokerCluster's telemetry: the job, when it runs, its rights and its volume."""

from __future__ import annotations

from brokerd_operator.manifests import telemetry

from tests.operator.manifests.test_manifests import all_on, by_kind, context, pod_specs


def test_telemetry_is_nothing_until_it_is_enabled() -> None:
    assert telemetry.objects(context()) == []


def test_telemetry_runs_by_cron_and_never_twice() -> None:
    made = context(telemetry={"enabled": True, "schedule": "*/5 * * * *", "suspend": True})
    cron = by_kind(telemetry.objects(made))["CronJob/orders-telemetry"]["spec"]
    assert cron["schedule"] == "*/5 * * * *"
    assert cron["suspend"] is True
    assert cron["concurrencyPolicy"] == "Forbid"
    assert cron["startingDeadlineSeconds"] == 300
    job = cron["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] == 3000
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "readinessProbe" not in job["template"]["spec"]["containers"][0]


def test_telemetry_command_line_is_the_contract() -> None:
    assert telemetry.arguments(context(replicas=1, telemetry={"enabled": True})) == [
        *("python", "-m", "brokerd_telemetry", "run"),
        *("--cluster", "shop/orders"),
        *("--pull", "orders-0.orders-nodes.shop.svc:5680"),
        *("--out", "/var/lib/telemetry"),
        *("--master", "local[*]"),
        *("--user", "$(ADMIN_USER)"),
        *("--password-file", "/etc/telemetry-admin/password"),
    ]
    distributed = telemetry.arguments(all_on())
    assert distributed[distributed.index("--executors") + 1] == "4"
    assert distributed[distributed.index("--image") + 1] == "localhost/telemetry:1"


def test_telemetry_trusts_the_authority_of_the_members() -> None:
    (pod,) = pod_specs(telemetry.job(context(), "manual"))
    values = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert values["BROKERD_CA_FILE"] == "/etc/telemetry-tls/ca.crt"
    volumes = {item["name"]: item for item in pod["volumes"]}
    assert volumes["tls-ca"]["secret"]["secretName"] == "orders-tls"
    (pod,) = pod_specs(telemetry.job(context(tls={"secretName": "mine"}), "manual"))
    assert "BROKERD_CA_FILE" not in {item["name"] for item in pod["containers"][0]["env"]}


def test_telemetry_role_is_exactly_what_client_mode_needs() -> None:
    """design/telemetry.md §5.2; nothing on our resources, on Secrets or on volume claims."""
    rules = {rule["resources"][0]: rule["verbs"] for rule in telemetry.role(all_on())["rules"]}
    assert set(rules) == {"pods", "configmaps", "services"}
    assert rules["services"] == ["deletecollection"]
    assert "patch" not in rules["pods"]


def test_tables_outlive_the_cluster_unless_volumes_go_too() -> None:
    kept = telemetry.volume_claim(context(telemetry={"enabled": True}))
    assert "ownerReferences" not in kept["metadata"]
    assert telemetry.volume_claim(all_on())["metadata"]["ownerReferences"][0]["uid"] == "u-1"
