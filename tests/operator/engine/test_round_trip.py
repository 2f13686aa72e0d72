"""Export, apply to an empty broker, plan: what comes out is what went in, for every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.local import dry_run, export_topology
from brokerd_operator.local.export_topology import Export
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs import arguments, registry
from brokerd_operator.specs.model import Identity
from brokerd_operator.validation import Admitted, Validator

from brokerd.core.catalog import catalog_specs, names
from tests.operator.engine.test_warnings import running
from tests.operator.fake_broker import PASSWORD, USER, FakeBroker
from tests.operator.resources import resource

pytestmark = pytest.mark.timeout(240)

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

#: kind, vhost, name, spec: one of everything with every setting that a resource can say.
OBJECTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("vhost", "", "/", {"description": "the first", "tags": ["a"]}),
    (
        "vhost",
        "",
        "team",
        {
            "description": "ours",
            "tags": ["a", "b"],
            "default_queue_type": "quorum",
            "limits": {"max-connections": 5, "max-queues": 6, "max-exchanges": -1},
        },
    ),
    ("user", "", "Web", {"tags": ["monitoring", "policymaker"], "limits": {"max-channels": 9}}),
    ("user", "", "web", {"tags": []}),
    ("permission", "team", "web", {"configure": "", "write": "^o", "read": ".*"}),
    ("permission", "/", "Web", {"configure": "^a", "write": "", "read": ""}),
    ("topic_permission", "team", "web|in", {"write": "^{username}[.]", "read": ".*"}),
    (
        "parameter",
        "/",
        "federation-upstream/east",
        {
            "value": {
                "prefetch-count": 7,
                "ack-mode": "on-publish",
                "max-hops": 3,
                "reconnect-delay": 1.5,
                "trust-user-id": True,
                "queue-type": "quorum",
                "resource-cleanup-mode": "never",
                "channel-use-mode": "single",
                "exchange": "x",
                "queue": "q",
                "consumer-tag": "orders",
                "expires": 60_000,
                "message-ttl": 1_500,
                "ca-certificates": PEM,
            }
        },
    ),
    (
        "parameter",
        "team",
        "federation-upstream/east",
        {
            "value": {
                "prefetch-count": 1000,
                "ack-mode": "on-confirm",
                "max-hops": 1,
                "reconnect-delay": 5,
                "trust-user-id": False,
                "queue-type": "classic",
                "resource-cleanup-mode": "default",
                "channel-use-mode": "multiple",
            }
        },
    ),
    (
        "parameter",
        "/",
        "federation-upstream-set/both",
        {"value": [{"upstream": "east", "exchange": "y", "queue": "z", "max-hops": 2}]},
    ),
    (
        "parameter",
        "/",
        "shovel/mover",
        {
            "value": {
                "src-exchange": "in",
                "src-exchange-key": "k",
                "src-queue-args": {"x-expires": 5},
                "src-consumer-args": {"x-priority": -1},
                "src-prefetch-count": 7,
                "src-delete-after": 12,
                "dest-uri": "amqp:///team",
                "dest-queue": "out",
                "dest-queue-args": {"x-queue-type": "quorum"},
                "dest-add-forward-headers": True,
                "dest-add-timestamp-header": True,
                "dest-unroutable": "drop",
                "dest-publish-properties": {"app_id": "a", "delivery_mode": 2},
                "ack-mode": "on-publish",
                "reconnect-delay": 0.25,
            }
        },
    ),
    (
        "operator_policy",
        "/",
        "bounds",
        {
            "pattern": "^o",
            "apply-to": "quorum_queues",
            "priority": 4,
            "definition": {
                "delivery-limit": 3,
                "message-ttl": 1000,
                "expires": 90_000,
                "max-length": 10,
                "max-length-bytes": 4096,
                "overflow": "reject-publish",
                "target-group-size": 5,
            },
        },
    ),
    (
        "policy",
        "/",
        "all.things",
        {
            "pattern": "^(a|b)",
            "apply-to": "all",
            "priority": -3,
            "definition": {
                "alternate-exchange": "in",
                "dead-letter-exchange": "",
                "dead-letter-routing-key": "k",
                "consumer-timeout": 5_000,
                "queue-leader-locator": "balanced",
                "federation-upstream-pattern": "^e",
                "delayed-retry-type": "failed",
            },
        },
    ),
    (
        "policy",
        "team",
        "Federated Ones",
        {
            "pattern": ".",
            "apply-to": "exchanges",
            "priority": 0,
            "definition": {"federation-upstream-set": "all"},
        },
    ),
    (
        "exchange",
        "team",
        "in",
        {"type": "topic", "settings": {"alternate-exchange": "Ünrouted §"}},
    ),
    (
        "exchange",
        "team",
        "Ünrouted §",
        {"type": "fanout", "durable": False, "auto_delete": True, "internal": True},
    ),
    (
        "exchange",
        "/",
        "later",
        {
            "type": "x-delayed-message",
            "arguments": {"x-delayed-type": "topic", "x-odd": 1},
            "settings": {"alternate-exchange": "fed"},
        },
    ),
    ("exchange", "/", "fed", {"type": "direct", "settings": {"federation-upstream": "east"}}),
    (
        "exchange",
        "/",
        "fed.all",
        {
            "type": "headers",
            "arguments": {"alternate-exchange": "fed", "x-odd": [1, {"a": None}]},
            "settings": {"federation-upstream-set": "all"},
        },
    ),
    (
        "queue",
        "team",
        "orders",
        {
            "type": "quorum",
            "replicas": 3,
            "arguments": {"x-single-active-consumer": True, "x-weight": 1.5, "x-text": ""},
            "settings": {
                "dead-letter-exchange": "Ünrouted §",
                "dead-letter-routing-key": "late",
                "dead-letter-strategy": "at-least-once",
                "delivery-limit": -1,
                "message-ttl": 0,
                "expires": 86_400_000,
                "max-length": 5,
                "max-length-bytes": 1_000_000,
                "overflow": "reject-publish",
                "consumer-timeout": 1_000,
                "queue-leader-locator": "client-local",
            },
        },
    ),
    (
        "queue",
        "team",
        "Orders",
        {
            "type": "classic",
            "durable": False,
            "auto_delete": True,
            "arguments": {"x-max-priority": 9},
        },
    ),
]
BINDINGS = [
    ("team", "in", "queue", "orders", "a.#", {}),
    ("team", "in", "queue", "orders", "", {}),
    ("team", "in", "exchange", "Ünrouted §", "late", {}),
    ("/", "fed.all", "exchange", "fed", "", {"x-match": "all", "n": 1}),
]
#: What the broker makes by itself, and what goes with a connection.
TRANSIENT: list[tuple[str, str, str, dict[str, Any]]] = [
    ("exchange", "/", "amq.topic", {"type": "topic"}),
    ("queue", "/", "amq.gen-1", {"type": "classic"}),
    ("queue", "/", "mine", {"type": "classic", "exclusive": True}),
    ("queue", "/", "federation: x -> east", {"type": "classic"}),
    ("exchange", "/", "federation: x -> east B", {"type": "topic", "internal": True}),
]


def stored(kind: str, vhost: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """As the broker keeps it, with every default."""
    return catalog_specs.normalise(kind, vhost, name, spec)


def fill(broker: FakeBroker) -> dict[Identity, dict[str, Any]]:
    """One of everything, made by somebody else; what of it is to come out."""
    for kind, vhost, name, spec in TRANSIENT:
        broker.put(Identity(kind, vhost, name), spec)
    held = [(kind, vhost, name, spec) for kind, vhost, name, spec in OBJECTS]
    for vhost, source, kind, destination, key, table in BINDINGS:
        name = arguments.binding_name(source, kind, destination, key, table)
        spec = {
            "source": source,
            "destination": destination,
            "destination_kind": kind,
            "routing_key": key,
            "arguments": table,
        }
        held.append(("binding", vhost, name, spec))
    ours = {}
    for kind, vhost, name, spec in held:
        identity = Identity(kind, vhost, name)
        kept = stored(kind, vhost, name, spec)
        if kind == "user":
            kept.pop("password_hash")
        ours[identity] = kept
        broker.put(identity, kept)
    # To a queue that goes with its connection: it goes too.
    name = arguments.binding_name("amq.topic", "queue", "mine", "k", {})
    spec = {
        "source": "amq.topic",
        "destination": "mine",
        "destination_kind": "queue",
        "routing_key": "k",
        "arguments": {},
    }
    broker.put(Identity("binding", "/", name), spec)
    return ours


async def listed(broker: FakeBroker) -> list[ObservedObject]:
    client = AdminClient(Target((broker.address,), USER, PASSWORD))
    try:
        items, _ = await client.list_topology()
    finally:
        await client.close()
    return items


def without_secrets(identity: Identity, spec: dict[str, Any]) -> dict[str, Any]:
    if identity.name.startswith(("federation-upstream/", "shovel/")):
        value = {
            key: item
            for key, item in spec["value"].items()
            if not key.endswith("uri") or str(item).startswith("amqp:///")
        }
        return {**spec, "value": value}
    return {key: value for key, value in spec.items() if not key.startswith("password")}


def secret(name: str, data: dict[str, str], exported: Export) -> dict[str, Any]:
    assert any(name in note for note in exported.notes)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def secrets_for(exported: Export) -> list[dict[str, Any]]:
    """The Secrets that the notes ask for."""
    found = []
    for body in exported.resources:
        spec = body["spec"]
        if "uriSecretRef" in spec:
            name, data = spec["uriSecretRef"]["name"], {"uri": "amqp://u:p@east"}
        elif "credentialsSecretRef" in spec:
            user = spec.get("name", body["metadata"]["name"])
            name, data = spec["credentialsSecretRef"]["name"], {"username": user, "password": "p"}
        elif body["kind"] == "Shovel":
            ends = [spec["source"]["uriSecretRef"]["name"]]
            found += [secret(end, {"uri": "amqp://u:p@east"}, exported) for end in ends]
            continue
        else:
            continue
        found.append(secret(name, data, exported))
        if "tls" in spec:
            name = spec["tls"]["caSecretRef"]["name"]
            found.append(secret(name, {"ca.crt": PEM}, exported))
    names_ = [body["metadata"]["name"] for body in found]
    assert len(names_) == len(set(names_)), "two users share no Secret"
    return found


async def test_export_applied_to_an_empty_broker_gives_an_equal_topology(tmp_path: Path) -> None:
    source = FakeBroker()
    await source.start()
    ours = fill(source)
    exported = export_topology.to_resources(await listed(source), "prod", None)
    await source.stop()
    bodies = yaml.safe_load_all(exported.yaml)
    directory = tmp_path / "resources"
    directory.mkdir()
    (tmp_path / "data").mkdir()
    async with running(tmp_path / "data") as bench:
        bench.broker.refuses_transient = False
        connection = resource("BrokerConnection", "prod", endpoints=[bench.broker.address])
        documents = [*secrets_for(exported), connection]
        for body in bodies:
            body["spec"]["brokerRef"]["kind"] = "BrokerConnection"
            documents.append(body)
        login = {"username": USER, "password": PASSWORD}
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "login"},
                "stringData": login,
            }
        )
        (directory / "all.yaml").write_text(yaml.safe_dump_all(documents, allow_unicode=True))
        target = {"default/prod": Target((bench.broker.address,), USER, PASSWORD)}
        before = await dry_run.run(directory, tmp_path / "nothing", target)
        assert before.status == 2
        assert len([line for line in before.lines if line.startswith("+ ")]) == len(ours) - 1
        for body in documents:
            bench.apply(body)
        exported_kinds = {body["kind"] for body in exported.resources}
        assert exported_kinds == set(registry.TOPOLOGY_KINDS)
        for body in exported.resources:
            key = body["kind"], body["metadata"]["name"]
            await bench.until(
                f"{key} is ready",
                lambda k=key: (found := bench.ready(*k)) is not None and found.status == "True",
            )
        copy = {item.identity: item.spec for item in await listed(bench.broker)}
        assert set(copy) == set(ours)
        for identity, spec in ours.items():
            made = without_secrets(identity, stored_like(identity, copy[identity]))
            assert made == without_secrets(identity, spec), identity
        after = await dry_run.run(directory, tmp_path / "data", target)
        assert after.lines == ["nothing would change"]
        assert after.status == 0


def stored_like(identity: Identity, spec: dict[str, Any]) -> dict[str, Any]:
    if identity.kind == "user":
        return spec
    return stored(identity.kind, identity.vhost, identity.name, spec)


def test_every_exported_resource_is_valid_and_has_a_name_of_its_own() -> None:
    validator = Validator.from_directory()
    objects = [ObservedObject(k, v, n, stored(k, v, n, s)) for k, v, n, s in OBJECTS]
    exported = export_topology.to_resources(objects, "prod", "team")
    for body in exported.resources:
        verdict = validator.admit(body)
        assert isinstance(verdict, Admitted), (body, verdict)
    seen = [(body["kind"], body["metadata"]["name"]) for body in exported.resources]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("item", "note"),
    [
        (("user", "", "u", {"tags": ["odd"]}), "no field for the tags odd"),
        (("vhost", "", "v", {"limits": {"max-bindings": 1}}), "the limit max-bindings"),
        (
            (
                "exchange",
                "/",
                "x",
                {"type": "topic", "settings": {"federation-upstream-pattern": "^a"}},
            ),
            "the setting federation-upstream-pattern has no field",
        ),
        (
            ("queue", "/", "q", {"type": "quorum", "settings": {"target-group-size": 3}}),
            "the setting target-group-size has no field",
        ),
        (
            ("operator_policy", "/", "p", {"pattern": "a", "definition": {"queue-version": 2}}),
            "no field for queue-version, so it is left out",
        ),
        (
            ("parameter", "/", "federation-upstream/u", {"value": {"ha-policy": "c"}}),
            "ha-policy has no field",
        ),
        (
            (
                "parameter",
                "/",
                "federation-upstream-set/s",
                {"value": [{"upstream": "u", "prefetch-count": 1}]},
            ),
            "prefetch-count has no field",
        ),
        (("parameter", "/", "odd/s", {"value": {}}), "parameter odd/s has no resource kind"),
        (
            ("parameter", "/", "shovel/s", {"value": {"src-protocol": "amqp091", "odd": 1}}),
            "Shovel s: odd has no field",
        ),
        (("strange", "/", "s", {}), "strange s has no resource kind"),
    ],
)
def test_what_no_resource_can_say_is_told(
    item: tuple[str, str, str, dict[str, Any]], note: str
) -> None:
    exported = export_topology.to_resources([ObservedObject(*item)], "prod", None)
    assert any(note in told for told in exported.notes), exported.notes


@pytest.mark.parametrize(
    ("uri", "end"),
    [
        ("amqp:///team%2Fa", {"vhost": "team/a"}),
        ("amqp://", {"vhost": "/"}),
        ("amqp://u:p@/team", {"uriSecretRef": {"name": "s-src-uri"}}),
        ("amqp://?auth_mechanism=external", {"uriSecretRef": {"name": "s-src-uri"}}),
        (["amqp://", "amqp://east"], {"uriSecretRef": {"name": "s-src-uri"}}),
        ("amqp://east", {"uriSecretRef": {"name": "s-src-uri"}}),
    ],
)
def test_shovels_from_the_broker_itself_need_no_secret(uri: object, end: dict[str, Any]) -> None:
    value = {"src-uri": uri, "src-queue": "q", "dest-uri": "amqp://east", "dest-queue": "q"}
    item = ObservedObject("parameter", "/", "shovel/s", {"value": value})
    exported = export_topology.to_resources([item], "prod", None)
    (body,) = exported.resources
    assert body["spec"]["source"] == end | {"queue": "q"}
    assert any("user" in note for note in exported.notes) == ("vhost" in end)


def test_definitions_of_rabbitmq_hold_topic_permissions(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(
        '{"topic_permissions": [{"user": "web", "vhost": "/", "exchange": "a|b", '
        '"write": "^w", "read": "^r"}]}'
    )
    objects = export_topology.read_definitions(file)
    (body,) = export_topology.to_resources(objects, "prod", None).resources
    assert body["kind"] == "TopicPermission"
    assert body["spec"] == {
        "brokerRef": {"name": "prod"},
        "user": "web",
        "exchange": "a|b",
        "write": "^w",
        "read": "^r",
    }


def test_definitions_with_the_plug_in_have_the_delayed_type_as_a_field(tmp_path: Path) -> None:
    """Types that are none of brokerd's stay an argument, so that applying them is refused with the
    broker's words.
    """
    row = {"vhost": "/", "durable": True, "auto_delete": False, "internal": False}
    row |= {"type": "x-delayed-message"}
    rows = [
        row | {"name": "later", "arguments": {"x-delayed-type": "direct"}},
        row | {"name": "odd", "arguments": {"x-delayed-type": "x-rtopic"}},
    ]
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"rabbit_version": "3.13.7", "exchanges": rows}))
    objects = export_topology.read_definitions(file)
    result = export_topology.to_resources(objects, "prod", None)
    later, odd = (body["spec"] for body in result.resources)
    assert (later["delayedType"], "arguments" in later) == ("direct", False)
    assert "delayedType" not in odd
    assert odd["arguments"] == [{"name": "x-delayed-type", "string": "x-rtopic"}]
    for body in result.resources:
        assert isinstance(Validator.from_directory().admit(body), Admitted)


def test_kinds_of_the_broker_are_those_that_an_export_knows() -> None:
    assert set(export_topology._BUILDERS) == set(names.KINDS) - {"setting", "member"}


# ---- plan ----------------------------------------------------------------------------------------


async def planned(tmp_path: Path, *bodies: dict[str, Any], known: Any = None) -> list[str]:
    directory = tmp_path / "files"
    directory.mkdir(exist_ok=True)
    (directory / "a.yaml").write_text(yaml.safe_dump_all(bodies))
    if known is not None:
        kept = {"resources": known, "secrets": []}
        (tmp_path / "resources.json").write_text(json.dumps(kept))
    return (await dry_run.run(directory, tmp_path, {})).lines


async def test_plan_knows_users_whose_secret_is_made_and_rights_by_reference(
    tmp_path: Path,
) -> None:
    lines = await planned(
        tmp_path,
        resource("User", "web", name="www"),
        resource("Permission", "p", user=None, userRef={"name": "web"}),
        resource("TopicPermission", "t", user=None, userRef={"name": "web"}),
    )
    assert "+ user www on default/prod (User web)" in lines
    assert "+ permission www in / on default/prod (Permission p)" in lines
    assert "+ topic permission www|orders.in in / on default/prod (TopicPermission t)" in lines


async def test_plan_waits_for_a_secret_that_no_file_holds(tmp_path: Path) -> None:
    lines = await planned(tmp_path, resource("User", credentialsSecretRef={"name": "gone"}))
    assert "? User thing: Secret gone does not exist" in lines


async def test_plan_takes_a_cluster_of_the_directory_for_an_upstream(tmp_path: Path) -> None:
    upstream = resource("FederationUpstream", "east")
    assert "? FederationUpstream east: BrokerCluster warehouse has no address" in await planned(
        tmp_path, upstream
    )
    lines = await planned(tmp_path, resource("BrokerCluster", "warehouse"), upstream)
    assert any(line.startswith("+ parameter federation-upstream/east") for line in lines)
    assert not any("amqp://" in line for line in lines)


async def test_plan_tells_rivals_and_missing_grants(tmp_path: Path) -> None:
    foreign = resource("Queue", "theirs", brokerRef={"name": "prod", "namespace": "default"})
    foreign["metadata"]["namespace"] = "team"
    lines = await planned(
        tmp_path,
        resource("BrokerCluster", "prod"),
        resource("Queue", "a", name="q"),
        resource("Queue", "b", name="q"),
        foreign,
    )
    conflicts = [line.partition(": ") for line in lines if line.startswith("! ")]
    assert all(place.startswith(f"! {tmp_path}/") for place, _, _ in conflicts)
    assert sorted(said for _, _, said in conflicts)[0] == (
        "Queue b: NameConflict: Queue default/a is for the same object"
    )
    assert sorted(said for _, _, said in conflicts)[1].startswith(
        "Queue theirs: NotGranted: BrokerCluster default/prod grants nothing to"
    )


async def test_plan_shows_what_becomes_of_clusters(tmp_path: Path) -> None:
    same, other = resource("BrokerCluster", "same"), resource("BrokerCluster", "other", replicas=1)
    admitted = []
    for body in (same, other, resource("BrokerCluster", "gone")):
        verdict = Validator.from_directory().admit(body)
        assert isinstance(verdict, Admitted)
        admitted.append(verdict.body)
    other["spec"]["replicas"] = 3
    lines = await planned(tmp_path, same, other, resource("BrokerCluster", "new"), known=admitted)
    assert "+ BrokerCluster new" in lines
    assert "~ BrokerCluster other" in lines
    assert "    replicas: 1 -> 3" in lines
    assert "- BrokerCluster gone (its data stays)" in lines
    assert not any("same" in line for line in lines)
