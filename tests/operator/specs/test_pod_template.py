"""Additions to the members' pods: merged over what the operator makes, which stays its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.manifests import members, naming
from brokerd_operator.specs import broker_cluster
from brokerd_operator.specs.model import Invalid, Meta
from brokerd_operator.specs.pod_template import OWN_PATHS, OWN_PORTS, OWN_VOLUMES
from brokerd_operator.validation import Admitted, Validator

from tests.operator.resources import resource

ROOT = Path(__file__).parents[3]
VALIDATOR = Validator.from_directory()
EXAMPLE = ROOT / "examples" / "pods" / "members.yaml"
META = Meta("shop", "orders", uid="u-1", generation=1)


def pod(template: dict[str, Any]) -> dict[str, Any]:
    """The pod template as the API server and the operator make it of a spec."""
    return made_of(resource("BrokerCluster", "orders", podTemplate=template))["template"]


def made_of(body: dict[str, Any]) -> dict[str, Any]:
    admitted = VALIDATOR.admit(body, namespace="shop")
    assert isinstance(admitted, Admitted), admitted
    spec = broker_cluster.parse(admitted.body)
    assert not isinstance(spec, Invalid), spec
    assert spec.problem(META) is None
    images = naming.Images("broker:1", "telemetry:1")
    context = naming.Context(META, spec, images, operator_namespace="system")
    found: dict[str, Any] = members.stateful_set(context)["spec"]
    return found


def problem(**spec: Any) -> str:
    parsed = broker_cluster.parse(resource("BrokerCluster", "orders", podTemplate={"spec": spec}))
    assert not isinstance(parsed, Invalid)
    found = parsed.problem(META)
    assert found is None or found.reason == "InvalidSpec"
    return "" if found is None else found.message


def test_sidecars_init_containers_and_volumes_stand_beside_what_the_operator_makes() -> None:
    plain = pod({})["spec"]
    sidecar = {"name": "logs", "image": "logs:1", "ports": [{"containerPort": 9000}]}
    first = {"name": "wait", "image": "wait:1"}
    volume = {"name": "scratch", "emptyDir": {}}
    found = pod({"spec": {"containers": [sidecar], "initContainers": [first], "volumes": [volume]}})
    assert found["spec"]["containers"] == [*plain["containers"], sidecar]
    assert found["spec"]["initContainers"] == [first]
    assert found["spec"]["volumes"] == [*plain["volumes"], volume]
    rest = ("containers", "initContainers", "volumes")
    assert {k: v for k, v in found["spec"].items() if k not in rest} == {
        k: v for k, v in plain.items() if k not in rest
    }


def test_the_brokers_container_stays_the_first_one_and_kubectls_default() -> None:
    extra = {"name": "broker", "env": [{"name": "A", "value": "1"}]}
    mount = {"name": "scratch", "mountPath": "/scratch"}
    sidecar = {"name": "a-sidecar", "image": "s:1"}
    plain = pod({})["spec"]["containers"][0]
    found = pod({"spec": {"containers": [sidecar, {**extra, "volumeMounts": [mount]}]}})
    broker, other = found["spec"]["containers"]
    assert other == sidecar
    assert broker == {
        **plain,
        "env": [*plain["env"], {"name": "A", "value": "1"}],
        "volumeMounts": [*plain["volumeMounts"], mount],
    }
    default = "kubectl.kubernetes.io/default-container"
    for template in ({}, {"annotations": {default: "a-sidecar", "team": "shop"}}):
        assert pod(template)["metadata"]["annotations"][default] == "broker"


def test_a_variable_may_come_from_elsewhere() -> None:
    source = {"secretKeyRef": {"name": "login", "key": "token"}}
    env = [{"name": "TOKEN", "valueFrom": source}, {"name": "EMPTY"}]
    found = pod({"env": env})["spec"]["containers"][0]["env"]
    taken = {"name": "TOKEN", "value": "", "valueFrom": source}
    assert found[-2:] == [taken, {"name": "EMPTY", "value": ""}]


def test_hosts_dns_and_the_runtime_class_are_the_pods() -> None:
    wanted = {
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["ldap.corp"]}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.53"]},
        "runtimeClassName": "gvisor",
    }
    assert wanted.items() <= pod({"spec": wanted})["spec"].items()


@pytest.mark.parametrize(
    "field", ["command", "image", "ports", "securityContext", "readinessProbe"]
)
def test_what_the_operator_makes_of_the_brokers_container_is_refused(field: str) -> None:
    said = problem(containers=[{"name": "broker", field: ["x"]}])
    assert said.startswith(f"spec.podTemplate.spec.containers: broker: {field} belongs")


@pytest.mark.parametrize(
    "name", ["BROKERD_NODE_NAME", "OPTIONAL_BROKERD_LISTENERS_MANAGEMENT", "POD_NAME"]
)
def test_settings_of_the_operator_are_refused_in_the_brokers_container(name: str) -> None:
    said = problem(containers=[{"name": "broker", "env": [{"name": name, "value": "x"}]}])
    assert f"the variable {name} belongs to the operator" in said


def test_settings_of_the_log_are_the_users() -> None:
    level = {"name": "BROKERD_LOG_LEVEL", "value": "debug"}
    assert not problem(containers=[{"name": "broker", "env": [level]}])


@pytest.mark.parametrize("path", [*OWN_PATHS, "/", "/etc", "/var/lib/brokerd/wal/", "/tmp/x"])
def test_a_mount_over_what_the_broker_needs_is_refused(path: str) -> None:
    mount = {"name": "scratch", "mountPath": path}
    assert "in the operator's way" in problem(
        containers=[{"name": "broker", "volumeMounts": [mount]}]
    )


def test_paths_beside_the_brokers_are_the_users() -> None:
    mounts = [{"name": "s", "mountPath": path} for path in ("/tmpfiles", "/etc/brokerd-plugins")]
    assert not problem(containers=[{"name": "broker", "volumeMounts": mounts}])


@pytest.mark.parametrize("volume", sorted(OWN_VOLUMES))
def test_the_operators_volumes_are_neither_replaced_nor_written_to(volume: str) -> None:
    assert f"{volume} is a volume of the operator's" in problem(
        volumes=[{"name": volume, "emptyDir": {}}]
    )
    mount: dict[str, Any] = {"name": volume, "mountPath": "/x"}
    for field in ("containers", "initContainers"):
        said = problem(**{field: [{"name": "s", "volumeMounts": [mount]}]})
        assert f"{field}: s: {volume} is the operator's volume" in said
        reader = {"name": "s", "volumeMounts": [{**mount, "readOnly": True}]}
        assert not problem(**{field: [reader]})


def test_lists_of_own_volumes_and_ports_are_what_the_operator_makes() -> None:
    made = resource(
        "BrokerCluster",
        "orders",
        serviceAccountTokens={"issuer": "https://kubernetes.default.svc"},
        tls={"secretName": "mine", "caSecretName": "ca"},
    )
    spec = made_of(made)
    found = spec["template"]["spec"]
    names = {item["name"] for item in found["volumes"]}
    assert names | {"data"} == OWN_VOLUMES
    ports = {port["containerPort"] for port in found["containers"][0]["ports"]}
    assert ports <= OWN_PORTS
    mounts = [item["mountPath"] for item in found["containers"][0]["volumeMounts"]]
    assert all(any(f"{path}/".startswith(f"{own}/") for own in OWN_PATHS) for path in mounts)


def test_ports_of_the_broker_and_its_name_are_not_anothers() -> None:
    sidecar = {"name": "proxy", "ports": [{"containerPort": 5672}]}
    assert "port 5672 is the broker's" in problem(containers=[sidecar])
    assert "is the operator's container" in problem(initContainers=[{"name": "broker"}])


@pytest.mark.parametrize("hostile", ["x", 5, None, {"a": 1}, ["x"], [None]])
def test_lists_that_are_none_are_left_to_the_api_server(hostile: Any) -> None:
    names = ("ports", "volumeMounts")
    assert not problem(containers=[{"name": "s", **dict.fromkeys(names, hostile)}])


def test_the_example_is_admitted_and_has_each_addition() -> None:
    body = yaml.safe_load(EXAMPLE.read_text())
    found = made_of(body)["template"]["spec"]
    assert [item["name"] for item in found["containers"]] == ["broker", "health"]
    assert found["initContainers"]
    assert found["hostAliases"]
