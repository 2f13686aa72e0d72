"""The operator's rights are those that it uses, no more and no less, in each mode of the chart.

An API server of its own keeps an audit log. As the chart's ServiceAccount, with the rendered rules,
the operator does everything it offers; then each rule must have been used, and no request refused.
So a verb that is added to the chart fails by its name, and so does one that is taken away. The API
server enforces owner references as OpenShift does, which is what `finalizers` are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from brokerd_operator import selftest
from brokerd_operator.engine.engine import Engine
from brokerd_operator.sources import certificates
from brokerd_operator.sources.api import Api
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.listing import Listing
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.specs import registry

from tests.cluster_fixtures import CLUSTER, Kubernetes, api_down, api_up, require_binaries
from tests.operator.api.test_certificates_api import CERT_MANAGER, change, data
from tests.operator.api.test_cluster_lifecycle_api import Members, storage_class
from tests.operator.broker_thread import BrokerThread
from tests.operator.charts import OPERATOR, is_of_uninstallation, of_kind, render
from tests.operator.operator_process import (
    Namespace,
    OperatorProcess,
    of_connection,
    running,
    wait_for,
)
from tests.operator.resources import MINIMAL, resource
from tests.operator.rights import Audit, Grant, Request, granted, of_rules, unneeded

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ROOT = CLUSTER.parents[1]
ACCOUNT = "r-brokerd-operator"
POLICY = Path(__file__).with_name("audit_policy.yaml")
#: A watched namespace that does not exist: its requests are refused, and the others go on.
MISSING = "rights-missing"
ERRORS = "brokerd_operator_pass_errors_total"
UNAVAILABLE = "brokerd_operator_namespace_unavailable"
TOPOLOGY = [kind for kind in registry.KINDS if kind not in ("BrokerCluster", "BrokerConnection")]


@dataclass
class Mode:
    """An installation of the chart, and where its scenario takes place."""

    own: str
    watch: list[str]
    place: str
    items: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = {"watchNamespaces": self.watch, "crds": {"create": False}}
        items = render(OPERATOR, {**values, "namespaceOverride": self.own})
        items = [item for item in items if not is_of_uninstallation(item)]
        self.items = [item for item in items if not _is_for_people(item)]

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.own}:{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        (deployment,) = of_kind(self.items, "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        prefix = "BROKERD_OPERATOR_"
        return {
            item["name"].removeprefix(prefix): item["value"]
            for item in container["env"]
            if item["name"].startswith(prefix) and "value" in item
        }

    @property
    def rights(self) -> list[dict[str, Any]]:
        kinds = ("ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
        return [item for kind in kinds for item in of_kind(self.items, kind)]


def _is_for_people(item: dict[str, Any]) -> bool:
    """ClusterRoles that are added to view and edit give the operator nothing."""
    return bool(item["metadata"]["name"].endswith(("-view", "-edit")))


def modes() -> dict[str, Mode]:
    return {
        "own": Mode("rights-own", [], "rights-own"),
        "others": Mode("rights-ops", ["rights-shop", MISSING], "rights-shop"),
        "all": Mode("rights-all", ["*"], "rights-all-shop"),
    }


# ---- the API server ------------------------------------------------------------------------------


@dataclass
class Server:
    kubernetes: Kubernetes
    audit: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_binaries()
    folder = tmp_path_factory.mktemp("rights")
    log = folder / "audit.log"
    cluster = api_up(
        folder / "state",
        f"--audit-policy-file={POLICY}",
        f"--audit-log-path={log}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    )
    try:
        _install(cluster)
        yield Server(cluster, log)
    finally:
        api_down(folder / "state")


def _install(cluster: Kubernetes) -> None:
    """All kinds, other people's included."""
    for file in (ROOT / "crds", Path(__file__).with_name("gateway_crds.yaml")):
        cluster.kubectl("apply", "-f", str(file))
    for body in (CERT_MANAGER, storage_class("elastic", True)):
        cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")


def install(server: Server, mode: Mode, folder: Path) -> OperatorProcess:
    """Make the rights of a mode; an operator that has them and no others."""
    for name in {mode.own, mode.place}:
        server.kubernetes.kubectl("create", "namespace", name)
    give(server, mode.rights)
    token = server.kubernetes.kubectl("-n", mode.own, "create", "token", ACCOUNT).strip()
    config = yaml.safe_load(server.kubernetes.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    kubeconfig = folder / f"{mode.own}.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    settings = {**mode.environment, "NAMESPACE": mode.own}
    watched = settings.pop("WATCH_NAMESPACES")
    process = OperatorProcess(kubeconfig, watched, folder / f"{mode.own}.log", settings=settings)
    process.role_binding = settings.get("ROLE_BINDING", "")
    return process


# ---- the scenario: what an operator can be asked for ---------------------------------------------


class Scenario:
    """One mode's resources, over their life."""

    def __init__(self, server: Server, mode: Mode, operator: OperatorProcess) -> None:
        self.mode = mode
        self.operator = operator
        self.space = Namespace(server.kubernetes, mode.place)
        self.audit = Audit(server.audit)
        self.broker = BrokerThread()
        self.handed_on: list[Grant] = []
        #: What the operator asked for up to the scenario's end; other tests go on as the same user.
        self.requests: set[Request] = set()

    def close(self) -> None:
        self.broker.close()

    def run(self) -> None:
        """Everything; the requests are in the audit log afterwards."""
        try:
            self._run()
        except AssertionError as error:
            raise AssertionError(f"refused: {refused(requests_of(self))}\n{error}") from error

    def _run(self) -> None:
        with running(self.operator):
            self.topology()
            self.everything_on_and_off()
            self.a_member()
            self.end()
            assert self.operator.stop() == 0

    def topology(self) -> None:
        self.space.connect(self.broker.broker.address)
        self.space.apply(*(self._body(kind) for kind in TOPOLOGY))
        wait_for("all are looked at", lambda: self._count(_is_looked_at) == len(TOPOLOGY))
        self.space.wait_reason("user", "thing", "Applied")

    def _body(self, kind: str) -> dict[str, Any]:
        reference = {"name": "prod", "kind": "BrokerConnection"}
        return resource(kind, "thing", **{**MINIMAL[kind], "brokerRef": reference})

    def _count(self, check: Callable[[dict[str, Any]], bool]) -> int:
        """Resources of all kinds at once that something holds for."""
        text = self.space.cluster.kubectl("-n", self.mode.place, "get", "broker", "-o", "json")
        return sum(map(check, json.loads(text)["items"]))

    def everything_on_and_off(self) -> None:
        """What a BrokerCluster may have beside its members comes and goes again."""
        authority, key = certificates.make_ca("test")
        hosts = [f"full-{number}.full-nodes.{self.mode.place}.svc" for number in range(3)]
        made = certificates.make_certificate(authority, key, ["full", *hosts])
        issued = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "full-issued-tls"}}
        self.space.apply({**secret, "stringData": {k: v.decode() for k, v in issued.items()}})
        edge = {"parentRefs": [{"name": "edge"}]}
        full = Members(
            *(self.space, "full"),
            tls={
                "issuerRef": {"name": "corp"},
                "caSecretName": "full-issued-tls",
                "disablePlain": True,
            },
            gateway={**edge, "hostnames": ["orders.example"]},
            listeners={"serviceType": "NodePort"},
            networkPolicy={"allowFrom": [{"tier": "web"}]},
            telemetry={"enabled": True, "engine": "kubernetes"},
        )
        full.wait("WaitingForMembers")
        self.there("tlsroutes.gateway.networking.k8s.io", "certificates.cert-manager.io")
        role = self.space.get("role", "full-telemetry") or {}
        self.handed_on = of_rules(role["rules"], self.mode.place)
        full.patch(gateway={**edge, "hostnames": None, "route": "TCP"})
        self.there("tcproutes.gateway.networking.k8s.io")
        full.patch(
            gateway=None,
            tls=None,
            listeners=None,
            networkPolicy={"mode": "None", "allowFrom": None},
            telemetry={"enabled": False},
            replicas=1,
        )
        for kind in ("cronjob", "role", "configmap", "certificates.cert-manager.io"):
            name = "full" if "." in kind else "full-telemetry"
            self.space.wait_gone(kind, name)
        for kind in ("networkpolicy", "poddisruptionbudget", "tcproutes.gateway.networking.k8s.io"):
            self.space.wait_gone(kind, "full")
        full.delete()

    def there(self, *kinds: str) -> None:
        for kind in kinds:
            wait_for(f"a {kind}", functools.partial(self.space.get, kind, "full"))

    def a_member(self) -> None:
        """A pod is made anew, resized, and its volume grows; a certificate is replaced."""
        amounts = {"requests": {"memory": "256Mi", "cpu": "100m"}, "limits": {"memory": "256Mi"}}
        storage = {"size": "10Gi", "className": "elastic"}
        one = Members(self.space, "one", replicas=1, resources=amounts, storage=storage)
        (uid,) = one.uids(1)
        one.patch(podTemplate={"labels": {"roll": "1"}})
        wait_for("the pod is made anew", lambda: one.uids(1) != [uid])
        one.serve(0)
        larger = {"requests": {"memory": "512Mi", "cpu": "200m"}, "limits": {"memory": "512Mi"}}
        one.patch(resources=larger)
        wait_for(
            "the running pod has them",
            lambda: one.pod(0)["spec"]["containers"][0]["resources"] == larger,
        )
        one.bind(1, "10Gi")
        one.patch(storage={"size": "20Gi"})
        wait_for("a StatefulSet of the new size", lambda: one.volume_size == "20Gi")
        hurt = data(self.space, "one-tls")["tls.key"]
        change(self.space, "one-tls", tls_key=b"garbage")
        one.look()
        before = (hurt, b"garbage")
        wait_for("a new one", lambda: data(self.space, "one-tls")["tls.key"] not in before)

    async def look(self) -> None:
        """What a listing does not show any more is read by its name, and found to be gone: in the
        operator's own words, since its watch is as a rule too quick for that."""
        api = Api()
        nothing: Any = None
        engine = Engine(nothing, nothing)
        store = KubernetesStore(
            api, engine.put, engine.remove, (self.mode.place,), nothing, SecretReads(api)
        )
        for kind in registry.KINDS:
            metadata = {"namespace": self.mode.place, "uid": "u", "resourceVersion": "1"}
            engine.put({**resource(kind), "metadata": {"name": "gone", **metadata}})
        try:
            await Listing(api, engine, store).take(self.mode.place)
        finally:
            api.close()
        assert not [key for key in engine.cache.all_keys() if key.name == "gone"]

    def end(self) -> None:
        """All resources go, and with them what they had."""
        where = ("-n", self.mode.place)
        bodies = [self._body(kind) for kind in TOPOLOGY]
        bodies.append(resource("BrokerCluster", "one"))
        for body in bodies:
            body["metadata"]["namespace"] = self.mode.place
        delete = (*where, "delete", "--wait=false", "-f", "-")
        self.space.cluster.kubectl(*delete, input=yaml.safe_dump_all(bodies))
        wait_for("all are gone", lambda: self._count(_has_finalizer) == 0)


def _has_finalizer(body: dict[str, Any]) -> bool:
    return "brokerd.io/teardown" in body["metadata"].get("finalizers", ())


def _is_looked_at(body: dict[str, Any]) -> bool:
    return _has_finalizer(body) and body.get("status", {}).get("observedGeneration") == 1


@pytest.fixture(scope="module")
def played(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scenario]:
    """The scenario in each mode; the two that keep to their namespaces at the same time."""
    folder = tmp_path_factory.mktemp("operators")
    found = {
        name: Scenario(server, mode, install(server, mode, folder))
        for name, mode in modes().items()
    }
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Scenario.run, [found["own"], found["others"]]))
        found["all"].run()
        for scenario in found.values():
            with pytest.MonkeyPatch.context() as patch:
                become(scenario, patch)
                asyncio.run(scenario.look())
            scenario.requests = requests_of(scenario)
    finally:
        for scenario in found.values():
            scenario.close()
    return found


def become(scenario: Scenario, patch: pytest.MonkeyPatch) -> None:
    """Let this process's own requests be the operator's."""
    # The client looks at KUBECONFIG when it is imported.
    place = "KUBE_CONFIG_DEFAULT_LOCATION"
    patch.setattr(kubernetes.config.kube_config, place, str(scenario.operator.kubeconfig))


def requests_of(scenario: Scenario) -> set[Request]:
    return {
        request
        for request in scenario.audit.of(scenario.mode.user)
        if MISSING not in (request.namespace, request.name)
    }


def refused(requests: set[Request]) -> list[str]:
    return sorted({request.refusal for request in requests} - {""})


@pytest.mark.parametrize("mode", sorted(modes()))
def test_every_right_is_used_and_no_request_is_refused(
    played: dict[str, Scenario], mode: str
) -> None:
    scenario = played[mode]
    requests = scenario.requests
    grants = [grant for grant in granted(scenario.mode.rights) if grant.namespace != MISSING]
    # To hand a right on one must hold it, and an owner's finalizers stand for leave to be named as
    # one: the API server asks both of its rules, not of the log. Without them Roles and Secrets
    # would have been refused.
    implied = {grant[1:4] for grant in scenario.handed_on}
    owners = ("brokerclusters/finalizers", "users/finalizers")
    implied |= {("brokerd.io", owner, "update") for owner in owners}
    unused = [grant for grant in unneeded(grants, requests) if grant[1:4] not in implied]
    assert (refused(requests), unused) == ([], [])


def test_secrets_are_read_by_name_and_never_listed(played: dict[str, Scenario]) -> None:
    """SEC-23, SEC-26: by what the API server was asked, in every mode."""
    for scenario in played.values():
        asked = [request for request in scenario.requests if request.resource == "secrets"]
        assert {request.verb for request in asked} == {"get", "create", "patch"}
        assert all(request.name for request in asked if request.verb != "create")


# ---- a right that is taken away ------------------------------------------------------------------


def without(mode: Mode, verb: str, resource: str = "") -> list[dict[str, Any]]:
    """The rights of a mode, less a verb on a resource, or on all."""
    left = copy.deepcopy(mode.rights)
    for role in left:
        rules = []
        for rule in role.get("rules", ()):
            hit = [name for name in rule["resources"] if resource in ("", name)]
            others = [name for name in rule["resources"] if name not in hit]
            verbs = [item for item in rule["verbs"] if item != verb]
            rules += [{**rule, "resources": hit, "verbs": verbs}] if hit and verbs else []
            rules += [{**rule, "resources": others}] if others else []
        if "rules" in role:
            role["rules"] = rules
    return left


def give(server: Server, items: list[dict[str, Any]]) -> None:
    there = [item for item in items if item["metadata"].get("namespace") != MISSING]
    server.kubernetes.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(there))


async def denied(needed: list[selftest.Right], expected: set[selftest.Right]) -> bool:
    """Whether the API server comes to deny just these."""
    api = Api()
    try:
        for _ in range(100):
            found = set(await selftest._denied(api, needed, 0.0))
            if found == expected:
                return True
            await asyncio.sleep(0.1)
    finally:
        api.close()
    return False


@pytest.fixture
def as_operator(
    played: dict[str, Scenario], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Scenario]:
    """Its own account in a mode, for what runs in this process."""

    def as_of(mode: str) -> Scenario:
        become(played[mode], monkeypatch)
        return played[mode]

    return as_of


def test_selftest_names_every_right_that_is_taken_away(
    server: Server, as_operator: Callable[[str], Scenario]
) -> None:
    """One verb after the other, on all resources."""
    mode = as_operator("own").mode
    (pod,) = of_kind(mode.items, "Pod")
    (argument,) = [a for a in pod["spec"]["containers"][0]["args"] if a.startswith("--rights=")]
    needed = selftest.rights(argument.removeprefix("--rights="))
    verbs = {right.verb for right in needed}
    assert verbs >= {"get", "list", "watch", "create", "update", "patch", "delete"}
    try:
        for verb in sorted(verbs):
            give(server, without(mode, verb))
            expected = {right for right in needed if right.verb == verb}
            assert asyncio.run(denied(needed, expected)), verb
    finally:
        give(server, mode.rights)
    assert asyncio.run(denied(needed, set()))


def test_an_operator_without_a_right_says_so(
    server: Server, as_operator: Callable[[str], Scenario]
) -> None:
    """In a condition, in a metric, by not being ready, or by its end."""
    scenario = as_operator("own")
    mode, operator, space = scenario.mode, scenario.operator, scenario.space

    def take(verb: str, resource: str) -> None:
        give(server, without(mode, verb, resource))

    operator.log.write_text("")
    try:
        with running(operator):
            for resource_, verb, said in (
                ("statefulsets", "patch", "StatefulSet bare-statefulsets"),
                ("secrets", "create", "Secrets"),
            ):
                take(verb, resource_)
                bare = Members(space, f"bare-{resource_}", replicas=1)
                assert said in bare.wait("ApiRefused")["message"]
                bare.delete()
            take("patch", "vhosts/status")
            space.apply(of_connection("Vhost", "mute"))
            wait_for("it is counted", lambda: operator.metric(ERRORS) > 0)
            take("update", "leases")
            # Another one may lead now.
            waits = "the work ends, and this process waits for the Lease again"
            wait_for("it leads no more", lambda: waits in operator.log.read_text())
            assert operator.process is not None
            assert operator.process.poll() is None
        take("list", "statefulsets")
        operator.start()
        wait_for("it is counted", lambda: _metric(operator, UNAVAILABLE) == 1)
        assert not operator.is_ready()
        wait_for("it is told", lambda: space.events("NamespaceUnavailable"))
    finally:
        if operator.process is not None and operator.process.poll() is None:
            operator.stop(9)
        give(server, mode.rights)


def _metric(operator: OperatorProcess, name: str) -> float:
    with contextlib.suppress(OSError):
        return operator.metric(name)
    return 0.0
