"""Manifests of a BrokerCluster: the contract with members, the restricted profile, exact rights."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.manifests import cluster, members, naming, protection, secrets, telemetry
from brokerd_operator.sources import certificates
from brokerd_operator.specs import broker_cluster, registry
from brokerd_operator.specs.model import Invalid, Meta
from brokerd_operator.validation import Admitted, Validator

from brokerd import config
from brokerd.cluster.peer import security
from brokerd.raft.messages import NodeId
from brokerd.server.access import operator_login
from brokerd.server.catalog import topology_batch
from tests.operator.resources import resource

VALIDATOR = Validator.from_directory()
UNREACHABLE = "node.kubernetes.io/unreachable"
CRDS = Path(__file__).resolve().parents[3] / "crds"
IMAGES = naming.Images("localhost/brokerd:1", "localhost/telemetry:1")


def context(initial_replicas: int | None = None, /, **spec: Any) -> naming.Context:
    admitted = VALIDATOR.admit(resource("BrokerCluster", "orders", **spec), namespace="shop")
    assert isinstance(admitted, Admitted), admitted
    parsed = broker_cluster.parse(admitted.body)
    assert not isinstance(parsed, Invalid), parsed
    return naming.Context(
        meta=Meta("shop", "orders", uid="u-1", generation=1),
        spec=parsed,
        images=IMAGES,
        operator_namespace="brokerd-system",
        initial_replicas=initial_replicas,
    )


def all_on() -> naming.Context:
    return context(
        image="registry.example/brokerd:2",
        imagePullSecrets=[{"name": "pull"}],
        storage={"size": "20Gi", "className": "fast", "retention": "Delete"},
        resources={"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        memory={"highWatermark": {"fraction": "0.5"}},
        queues={"defaultQueueType": "classic"},
        tls={"disablePlain": True},
        listeners={
            "serviceType": "LoadBalancer",
            "annotations": {"a": "b"},
            "ipFamilyPolicy": "PreferDualStack",
        },
        scheduling={
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "priorityClassName": "high",
            "affinity": {"podAntiAffinity": {}},
        },
        podTemplate={
            "labels": {"team": "shop"},
            "annotations": {"c": "d"},
            "env": [{"name": "BROKERD_LOG_LEVEL", "value": "debug"}],
        },
        networkPolicy={"allowFrom": [{"tier": "web"}]},
        access=[{"namespaces": {"names": ["team-b"], "selector": {"matchLabels": {"x": "y"}}}}],
        telemetry={"enabled": True, "engine": "kubernetes", "executors": 4, "interval": "1s"},
    )


def by_kind(objects: list[naming.Manifest]) -> dict[str, naming.Manifest]:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in objects}


@pytest.mark.parametrize(
    ("wanted", "is_added"),
    [
        ([], True),
        ([{"key": "k", "operator": "Exists"}], True),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": UNREACHABLE, "effect": "NoExecute", "tolerationSeconds": 9}], False),
        ([{"operator": "Exists"}], False),
    ],
)
def test_members_stay_on_a_node_that_cannot_be_reached(
    wanted: list[dict[str, Any]], is_added: bool
) -> None:
    """All of a node at once would be stopped when it is back; the user's own word counts."""
    asked = context(scheduling={"tolerations": wanted})
    found = members.stateful_set(asked)["spec"]["template"]["spec"]["tolerations"]
    added = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}]
    assert found == wanted + (added if is_added else [])


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod spec in a manifest, that of the executor template included."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for key, item in value.items():
            yield from pod_specs(json.loads(item) if key == "executor.yaml" else item)
    elif isinstance(value, list):
        for item in value:
            yield from pod_specs(item)


def environment(made: naming.Context) -> dict[str, Any]:
    found = members.environment(made)
    return {item["name"]: item if "valueFrom" in item else item["value"] for item in found}


def test_member_is_configured_by_its_environment() -> None:
    """The contract with `brokerd serve`, read by the broker's own configuration."""
    made = context(memory={"highWatermark": {"absolute": "1Gi"}}, telemetry={"interval": "1s"})
    values = environment(made)
    assert values["BROKERD_CLUSTER_MEMBERS"] == (
        "orders-0=orders-0.orders-nodes.shop.svc:5690,"
        "orders-1=orders-1.orders-nodes.shop.svc:5690,"
        "orders-2=orders-2.orders-nodes.shop.svc:5690"
    )
    given = {key: value for key, value in values.items() if isinstance(value, str)}
    given |= {
        "BROKERD_NODE_NAME": "orders-0",
        "BROKERD_CLUSTER_SECRET": "s",
        "BROKERD_AUTH_ADMIN_USER": "admin",
    }
    loaded = config.load(None, given, {})
    assert loaded.cluster.name == "shop/orders"
    assert str(loaded.data_dir) == "/var/lib/brokerd"
    assert loaded.auth.create_guest is False, "SEC-10"
    assert loaded.memory.high_watermark == "1048576KiB"
    assert loaded.queues.default_type == "quorum"
    assert loaded.telemetry.interval_ms == 1000
    assert loaded.peer_tls.cert_file == "/etc/brokerd/peer-tls/tls.crt"
    assert loaded.secrets.key_file == "/etc/brokerd/keys/keys"


#: What members of the first release know; it stays as it is.
FIRST_SETTINGS = frozenset(
    f"BROKERD_{name}"
    for name in (
        *("NODE_NAME", "NODE_DATA_DIR", "NODE_BIND", "LISTENERS_AMQP"),
        *("CLUSTER_NAME", "CLUSTER_MEMBERS", "CLUSTER_ADDRESS"),
        *("CLUSTER_WHEN_REMOVED", "CLUSTER_SECRET"),
        *("AUTH_ADMIN_USER", "AUTH_ADMIN_PASSWORD_FILE"),
        *("AUTH_CREATE_GUEST", "AUTH_OPERATOR_CA_FILE"),
        *("TLS_CERT_FILE", "TLS_KEY_FILE", "TLS_CA_FILE"),
        *("PEER_TLS_CERT_FILE", "PEER_TLS_KEY_FILE", "PEER_TLS_CA_FILE", "SECRETS_KEY_FILE"),
        *("QUEUES_DEFAULT_TYPE", "TELEMETRY_INTERVAL_MS", "MEMORY_HIGH_WATERMARK"),
    )
)


def test_members_of_an_earlier_image_are_given_no_setting_that_they_refuse() -> None:
    """A newer one is rendered as OPTIONAL_BROKERD_…, which only members that know it read."""
    rendered = {name for name in environment(all_on()) if name.startswith("BROKERD_")}
    assert rendered <= FIRST_SETTINGS
    assert len(rendered) > 15


def settings_schema() -> dict[str, Any]:
    """`spec.settings` of the CRD, by section."""
    crd = yaml.safe_load((CRDS / "brokerclusters.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found: dict[str, Any] = schema["properties"]["settings"]["properties"]
    return found


#: Values of settings that are more than any text.
EXAMPLES: dict[str, Any] = {
    "free_limit": "1GB",
    "total_override": "2GB",
    "profile": "rabbitmq-4.3",
    "algorithms": "ES256",
    "issuer": "https://login.example",
    "jwks_url": "https://login.example/keys",
    "scope_aliases": {"admin": "shop.tag:administrator"},
    "signing_keys": {"one": "/keys/one.pem"},
    "trusted": "10.0.0.0/8",
}


def _example(key: str, schema: dict[str, Any]) -> Any:
    if key in EXAMPLES:
        return EXAMPLES[key]
    if "enum" in schema:
        return schema["enum"][-1]
    if schema["type"] == "integer":
        return min(schema["minimum"] + 1, schema.get("maximum", 2**40))
    return {"boolean": True, "string": "x"}[schema["type"]]


def test_members_take_each_setting_that_a_brokercluster_may_have() -> None:
    """ADR 77: rendered for members that may be older, and none that is the operator's own."""
    wanted = {
        section: {key: _example(key, schema) for key, schema in found["properties"].items()}
        for section, found in settings_schema().items()
    }
    made = context(settings=wanted)
    added = made.spec.settings_environment()
    assert added.items() <= environment(made).items()
    own = environment(all_on()).keys()
    assert not {name.removeprefix("OPTIONAL_") for name in added} & own
    assert not added.keys() & own
    loaded = config.load(None, added, {})
    for section, values in wanted.items():
        for key, value in values.items():
            assert getattr(getattr(loaded, section), key) == value, (section, key)


def test_members_learn_from_their_pod_where_they_run() -> None:
    """ADR 26; a member of this release reads both."""
    made = environment(context())
    fields = {
        "OPTIONAL_BROKERD_NODE_HOST": "spec.nodeName",
        "OPTIONAL_BROKERD_NODE_ZONE": "metadata.labels['topology.kubernetes.io/zone']",
    }
    for name, path in fields.items():
        assert made[name]["valueFrom"]["fieldRef"]["fieldPath"] == path
    given = dict(zip(fields, ("worker-1", ""), strict=True))
    loaded = config.load(None, {"BROKERD_NODE_NAME": "orders-0"} | given, {})
    assert (loaded.node.host, loaded.node.zone) == ("worker-1", "")
    assert config.load(None, given | {"OPTIONAL_BROKERD_NODE_ZONE": "z-1a"}, {}).node.zone == "z-1a"


def test_pods_spread_over_hosts_and_zones_if_nobody_says_otherwise() -> None:
    pod = members.stateful_set(context())["spec"]["template"]["spec"]
    keys = [item["topologyKey"] for item in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    own = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    asked = context(scheduling={"topologySpreadConstraints": [own]})
    pod = members.stateful_set(asked)["spec"]["template"]["spec"]
    assert [item["topologyKey"] for item in pod["topologySpreadConstraints"]] == ["rack"]


def test_pod_name_comes_before_what_refers_to_it() -> None:
    names = [item["name"] for item in members.environment(context())]
    assert names.index("POD_NAME") < names.index("BROKERD_NODE_NAME")


def test_disabled_plain_amqp_is_nowhere() -> None:
    """design/operator.md §5.10: not in the member, not in a Service, not in the policy."""
    made = all_on()
    values = environment(made)
    assert values["BROKERD_LISTENERS_AMQP"] == "0"
    given = {name: value for name, value in values.items() if "LISTENERS" in name}
    loaded = config.load(None, {"BROKERD_NODE_NAME": "orders-0"} | given, {})
    assert (loaded.port("amqp"), loaded.port("management")) == (0, 0)
    assert loaded.port("management_tls") == naming.PORT_MANAGEMENT_TLS
    text = json.dumps(cluster.objects(made))
    assert "5672" not in text
    assert '"amqp"' not in text


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (context(), {"management": 15672, "management-tls": 15671}),
        (all_on(), {"management-tls": 15671}),
    ],
    ids=["default", "disable-plain"],
)
def test_the_http_api_is_where_clients_are(made: naming.Context, expected: dict[str, int]) -> None:
    """At members and in their Services; who may connect as a client may connect there (SEC-30)."""
    objects = by_kind(cluster.objects(made))
    [container] = objects["StatefulSet/orders"]["spec"]["template"]["spec"]["containers"]
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    assert {name: port for name, port in ports.items() if "management" in name} == expected
    settings = config.load(None, {"BROKERD_NODE_NAME": "orders-0"}, {})
    for name, port in expected.items():
        assert settings.port(name.replace("-", "_")) == port, "where a member listens"
    for service in ("orders", "orders-nodes"):
        found = objects[f"Service/{service}"]["spec"]["ports"]
        shown = {item["name"]: item["port"] for item in found if "management" in item["name"]}
        assert shown == expected
        # A port that the pods do not have has no endpoints.
        assert {item["targetPort"] for item in found} <= set(ports)
    rules = objects["NetworkPolicy/orders"]["spec"]["ingress"]
    admitting = [
        rule
        for rule in rules
        if {item["port"] for item in rule["ports"]} & {naming.PORT_MANAGEMENT, *expected.values()}
    ]
    assert admitting == [rules[0]]
    assert rules[0]["from"][0] == {"podSelector": {}}


def test_scaling_does_not_change_the_template() -> None:
    """Else every scale-up would restart all members."""
    before = members.stateful_set(context(replicas=3))
    after = members.stateful_set(context(3, replicas=5))
    assert before["spec"]["template"] == after["spec"]["template"]
    assert after["spec"]["replicas"] == 5
    assert after["metadata"]["annotations"][naming.INITIAL_REPLICAS] == "3"
    assert members.stateful_set(context(), replicas=2)["spec"]["replicas"] == 2
    # Newcomers ask the founders; who was removed waits for the operator.
    newcomer = environment(context(3, replicas=5))
    assert "prod-3" not in newcomer["BROKERD_CLUSTER_MEMBERS"]
    assert newcomer["BROKERD_CLUSTER_ADDRESS"].startswith("$(POD_NAME).")
    assert newcomer["BROKERD_CLUSTER_WHEN_REMOVED"] == "wait"


def test_members_are_restarted_by_the_operator_only_and_counted_while_stopped() -> None:
    running = members.stateful_set(context(3, replicas=5), 4)
    assert running["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert running["metadata"]["annotations"][naming.MEMBERS] == "4"
    stopped = dataclasses.replace(context(3, replicas=0), members=5)
    made = members.stateful_set(stopped, 0)
    assert made["spec"]["replicas"] == 0
    assert made["metadata"]["annotations"][naming.MEMBERS] == "5"


def test_stateful_set_starts_in_parallel_and_keeps_volumes() -> None:
    spec = members.stateful_set(context())["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60
    # A member that is told to stop in its first moments must not wait for the end of that.
    assert pod["shareProcessNamespace"] is True
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    for name in ("startup", "ready", "live"):
        probe = container[f"{ {'ready': 'readiness', 'live': 'liveness'}.get(name, name) }Probe"]
        assert probe["httpGet"] == {"path": f"/health/{name}", "port": "http"}


def test_labels_of_the_user_cannot_replace_ours() -> None:
    made = context(podTemplate={"labels": {"app.kubernetes.io/name": "evil", "team": "a"}})
    labels = members.stateful_set(made)["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "brokerd"
    assert labels["team"] == "a"


@pytest.mark.parametrize("made", [context(), all_on()], ids=["default", "all-on"])
def test_every_pod_meets_the_restricted_profile(made: naming.Context) -> None:
    """SEC-21, SEC-28, SEC-29."""
    objects = [*cluster.objects(made), telemetry.job(made, "manual")]
    found = list(pod_specs(objects))
    assert len(found) >= 2
    for pod in found:
        security_context = pod["securityContext"]
        assert security_context["runAsNonRoot"] is True
        assert security_context["runAsUser"] == 10001
        assert security_context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        for volume in pod["volumes"]:
            assert not {"hostPath", "hostNetwork"} & set(volume)
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] & 0o007 == 0, "nothing for others"


def test_only_the_distributed_driver_has_a_token() -> None:
    local = context(telemetry={"enabled": True})
    tokens = [pod["automountServiceAccountToken"] for pod in pod_specs(cluster.objects(local))]
    assert tokens == [False, False]
    assert not {"Role/orders-telemetry", "ConfigMap/orders-telemetry"} & set(
        by_kind(cluster.objects(local))
    )
    tokens = [pod["automountServiceAccountToken"] for pod in pod_specs(cluster.objects(all_on()))]
    assert tokens.count(True) == 1


@pytest.mark.parametrize(("replicas", "expected"), [(1, False), (2, False), (3, True), (5, True)])
def test_disruption_budget_only_where_it_lets_nodes_drain(replicas: int, expected: bool) -> None:
    budget = protection.pod_disruption_budget(context(replicas=replicas))
    assert (budget is not None) is expected
    if budget is not None:
        assert budget["spec"]["maxUnavailable"] == 1


def test_peer_port_is_for_members_only() -> None:
    """SEC-30."""
    policy = protection.network_policy(all_on())
    assert policy is not None
    rules = [
        rule
        for rule in policy["spec"]["ingress"]
        if any(port["port"] == naming.PORT_PEER for port in rule["ports"])
    ]
    assert rules == [
        {
            "from": [{"podSelector": {"matchLabels": naming.selector(all_on())}}],
            "ports": [{"port": 5690, "protocol": "TCP"}],
        }
    ]
    assert protection.network_policy(context(networkPolicy={"mode": "None"})) is None


def test_clients_of_other_namespaces_need_a_grant() -> None:
    made = protection.network_policy(context())
    assert made is not None
    assert made["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    granted = protection.network_policy(all_on())
    assert granted is not None
    text = json.dumps(granted["spec"]["ingress"][0]["from"])
    assert "team-b" in text
    assert '"x": "y"' in text
    assert '"tier": "web"' in text


def test_external_service_carries_nothing_but_amqps() -> None:
    objects = by_kind(cluster.objects(all_on()))
    external = objects["Service/orders-external"]
    assert external["spec"]["type"] == "LoadBalancer"
    assert [port["port"] for port in external["spec"]["ports"]] == [5671]
    assert objects["Service/orders"]["spec"]["type"] == "ClusterIP"
    assert "Service/orders-external" not in by_kind(cluster.objects(context()))


def test_members_find_each_other_before_they_are_ready() -> None:
    service = by_kind(cluster.objects(context()))["Service/orders-nodes"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_certificates_name_members_in_a_way_the_members_accept() -> None:
    """SEC-4: by name, not by authority alone; also for members that come by scaling."""
    names = secrets.peer_names(context(replicas=1))
    for ordinal in range(naming.MEMBERS_MAX):
        assert security.is_member_certificate(names, NodeId(f"orders-{ordinal}"))
        # Who dials a member expects this very name, whatever its address
        # (cluster/peer/transport.py).
        assert f"orders-{ordinal}" in names
    assert not security.is_member_certificate(names, NodeId("warehouse-0"))
    assert "orders.shop.svc" in secrets.serving_names(context())
    assert not any("*" in name for name in [*names, *secrets.serving_names(context())])


def test_what_the_volumes_need_stays_as_long_as_they_do() -> None:
    """ADR 19: without the keys nobody reads what is encrypted there; ADR 21: the administrator's
    password is in there.
    """
    keys = secrets.keys_secret(context(), "k")
    assert base64.b64decode(keys["data"]["keys"]) == b"k\n"
    admin = secrets.admin_secret(context(), "pw")
    assert admin is not None
    for kept in (keys, admin):
        assert "ownerReferences" not in kept["metadata"]
        assert "BrokerCluster orders" in kept["metadata"]["annotations"][secrets.KEPT]
    going = context(storage={"retention": "Delete"})
    for gone in (secrets.keys_secret(going, "k"), secrets.admin_secret(going, "pw")):
        assert gone is not None
        assert gone["metadata"]["ownerReferences"]
        assert "annotations" not in gone["metadata"]


def test_kept_secret_follows_the_retention_and_the_cluster_of_its_name() -> None:
    keeping, going = context(), context(storage={"retention": "Delete"})
    other = {"kind": "ConfigMap", "name": "else", "uid": "x"}
    mine = naming.owner_reference(going.meta, "BrokerCluster")
    before = {**mine, "uid": "of the one before"}
    kept = secrets.keys_secret(keeping, "k")
    owned = secrets.keys_secret(going, "k")
    assert secrets.ownership(keeping, kept) is None
    assert secrets.ownership(going, owned) is None
    found = secrets.ownership(going, kept)
    assert found is not None
    assert found["metadata"]["ownerReferences"] == [mine]
    assert found["metadata"]["annotations"] == {secrets.KEPT: None}
    # As an earlier release made it, for a BrokerCluster that is gone, with an owner of others.
    owned["metadata"]["ownerReferences"] = [other, before]
    found = secrets.ownership(keeping, owned)
    assert found is not None
    assert found["metadata"]["ownerReferences"] == [other]
    found = secrets.ownership(going, owned)
    assert found is not None
    assert found["metadata"]["ownerReferences"] == [other, mine]


def test_secret_of_the_cluster_before_is_told_from_this_ones() -> None:
    made = context()
    secret = secrets.cluster_secret(made, "s")
    assert not secrets.is_predecessors(made, secret)
    [mine] = secret["metadata"]["ownerReferences"]
    for owners, expected in (
        ([{**mine, "uid": "before"}], True),
        ([{**mine, "uid": "before"}, mine], False),
        ([{**mine, "name": "other", "uid": "before"}], False),
        ([], False),
    ):
        secret["metadata"]["ownerReferences"] = owners
        assert secrets.is_predecessors(made, secret) is expected


def test_members_let_the_operator_in_by_the_clusters_own_authority() -> None:
    """Also where the user brings a serving certificate, whose authority says nothing."""
    for made in (context(), context(tls={"secretName": "mine"})):
        path = environment(made)["BROKERD_AUTH_OPERATOR_CA_FILE"]
        assert path == environment(made)["BROKERD_PEER_TLS_CA_FILE"]


def test_longest_overlap_is_the_brokers() -> None:
    assert broker_cluster.OVERLAP_MS_MAX == topology_batch.PASSWORD_OVERLAP_MS_MAX
    assert certificates.OPERATOR_IDENTITY == operator_login.IDENTITY
    found = registry.parse(resource("BrokerCluster", admin={"passwordOverlap": "25h"}))
    assert isinstance(found, Invalid)
    assert "passwordOverlap" in found.message


def test_generated_secrets_hold_what_pods_mount() -> None:
    made = context()
    certificate = secrets.Certificate(b"CERT", b"KEY", b"CA")
    admin = secrets.admin_secret(made, "pw")
    tls = secrets.certificate_secret(made, made.tls_secret, certificate)
    assert admin is not None
    data = {key: base64.b64decode(value) for key, value in admin["data"].items()}
    assert data["password"] == b"pw"
    assert data["uri"] == b"amqp://admin:pw@orders.shop.svc:5672"
    assert set(tls["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert "KEY" not in repr(certificate)
    made_names = {
        item["metadata"]["name"]
        for item in (
            admin,
            tls,
            secrets.cluster_secret(made, "s"),
            secrets.keys_secret(made, "k"),
            secrets.certificate_secret(made, made.peer_tls_secret, certificate),
            secrets.ca_secret(made, {"ca.crt": b"CA", "ca.key": b"KEY"}),
        )
    }
    text = json.dumps(cluster.objects(made))
    assert "orders-ca" in made_names
    assert '"orders-ca"' not in text, "the CA's key is mounted by nobody"
    for name in made_names - {"orders-ca"}:
        assert f'"{name}"' in text


def test_cert_manager_is_asked_where_the_spec_names_an_issuer() -> None:
    made = context(tls={"issuerRef": {"name": "corp", "kind": "ClusterIssuer"}})
    [certificate] = [item for item in cluster.objects(made) if item["kind"] == "Certificate"]
    spec = certificate["spec"]
    assert spec["issuerRef"] == {
        "group": "cert-manager.io",
        "kind": "ClusterIssuer",
        "name": "corp",
    }
    assert {"orders.shop.svc", "orders-0.orders-nodes.shop.svc"} <= set(spec["dnsNames"])
    assert spec["secretName"] == made.tls_secret == "orders-issued-tls"
    assert set(secrets.certificate_secrets(made)) == {"orders-peer-tls"}
    assert '"orders-issued-tls"' in json.dumps(members.stateful_set(made))
    assert made.ca_secret is None, "who issued it may be no private authority"
    assert "Certificate" not in {item["kind"] for item in cluster.objects(context())}


def test_users_own_secrets_replace_generated_ones() -> None:
    made = context(
        admin={"secretRef": {"name": "my-admin"}}, tls={"secretName": "mine", "caSecretName": "ca"}
    )
    assert secrets.admin_secret(made, "x") is None
    assert set(secrets.certificate_secrets(made)) == {"orders-peer-tls"}
    text = json.dumps(members.stateful_set(made))
    assert '"my-admin"' in text
    assert '"orders-tls"' not in text
    without_ca = context(tls={"secretName": "mine"})
    assert "BROKERD_TLS_CA_FILE" not in environment(without_ca)


def test_members_have_a_token_only_where_tokens_are_taken() -> None:
    """SEC-28: to ask the API server for its keys."""
    assert "projected" not in json.dumps(members.stateful_set(context()))
    made = context(serviceAccountTokens={"issuer": "https://cluster"})
    values = environment(made)
    assert values["OPTIONAL_BROKERD_KUBERNETES_ISSUER"] == "https://cluster"
    pod = members.stateful_set(made)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (volume,) = [item for item in pod["volumes"] if item["name"] == "api"]
    token, authority = volume["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "api"]
    assert values["OPTIONAL_BROKERD_KUBERNETES_TOKEN_FILE"] == mount["mountPath"] + "/token"
    assert values["OPTIONAL_BROKERD_KUBERNETES_CACERTFILE"] == mount["mountPath"] + "/ca.crt"


def test_what_an_earlier_spec_made_is_known() -> None:
    """All-on and default differ only by objects that `possible` names, and by volume claims."""
    full, default = (
        by_kind(cluster.objects(all_on())),
        by_kind(cluster.objects(context(replicas=1))),
    )
    known = {f"{kind}/{name}" for _, kind, name in cluster.possible(context())}
    vanished = {key for key in set(full) - set(default) if not key.startswith("Persistent")}
    assert vanished <= known


def test_stopped_cluster_keeps_its_objects() -> None:
    objects = by_kind(cluster.objects(context(3, replicas=0)))
    assert objects["StatefulSet/orders"]["spec"]["replicas"] == 0
    assert "PodDisruptionBudget/orders" not in objects


def test_everything_is_owned_and_labelled() -> None:
    for item in cluster.objects(context(storage={"retention": "Delete"})):
        (owner,) = item["metadata"]["ownerReferences"]
        assert owner["kind"] == "BrokerCluster"
        assert owner["controller"] is True
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "brokerd-operator"
        assert item["metadata"]["namespace"] == "shop"
