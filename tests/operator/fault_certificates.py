"""A certificate's change and a takeover's refusal, as a scenario for the tests of faults.

A BrokerCluster is given a certificate of the company's own that is bad, then mended, then taken
back; another one meets a Service of an application's and is let have it; a third one is refused
such a Service until it is deleted.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.authorities import Authority, Pair
from tests.operator.fault_scenario import CLUSTER, Scenario, cluster

SECOND = "second"
THIRD = "third"
OWN = (f"{CLUSTER}-tls", f"{CLUSTER}-tls")
COMPANY = ("company", "company-ca")
#: Of the application whose Services have the names of the second and the third cluster.
SELECTOR = {"app": "web"}
ROOT = Authority("corp root")


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {
        key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


@dataclass
class Certificates(Scenario):
    """Owns three BrokerClusters of the namespace, and what is in their way."""

    has_telemetry: bool = False
    #: Secrets of the certificate and of its authority that new pods of the first cluster get.
    mounted: tuple[str, str] = OWN
    #: By the name of a cluster: whether it has the Service of its name.
    has_service: dict[str, bool] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        return (self.make, self.name_a_bad_one, self.mend, self.meet, self.take_over, self.go_back)

    def make(self) -> None:
        self._apply(cluster())

    def name_a_bad_one(self) -> None:
        good, other = self._issue(), ROOT.issue("x")
        self._give(Pair(good.certificate, other.key))
        self.space.apply(secret("company-ca", ca_crt=ROOT.certificate))
        self.reasons["BrokerCluster", CLUSTER] = "CertificateUnusable"
        self._apply(cluster(tls={"secretName": "company", "caSecretName": "company-ca"}))

    def mend(self) -> None:
        self.reasons.clear()
        self.mounted = COMPANY
        self._give(self._issue())

    def meet(self) -> None:
        """An application was there first."""
        for name in (SECOND, THIRD):
            self.space.apply(self._service(name))
            self.has_service[name] = False
            self.reasons["BrokerCluster", name] = "NameConflict"
            self._apply({**cluster(), "metadata": {"name": name}})

    def take_over(self) -> None:
        del self.reasons["BrokerCluster", SECOND]
        self.has_service[SECOND] = True
        self.space.apply(self._service(SECOND, annotations={"brokerd.io/adopt": SECOND}))

    def go_back(self) -> None:
        """The refused cluster goes without the Service."""
        self.mounted = OWN
        self._apply(cluster())
        self._delete(("BrokerCluster", THIRD))

    def _issue(self) -> Pair:
        hosts = (f"{CLUSTER}-{number}.{CLUSTER}-nodes.{self.space.name}.svc" for number in range(3))
        return ROOT.issue(*hosts)

    def _give(self, pair: Pair) -> None:
        self.space.apply(secret("company", tls_crt=pair.certificate, tls_key=pair.key))

    @staticmethod
    def _service(name: str, **metadata: Any) -> dict[str, Any]:
        spec = {"selector": SELECTOR, "ports": [{"name": "web", "port": 80}]}
        metadata = {"name": name, **metadata}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def _in_cluster(self) -> str:
        sets = {body["metadata"]["name"]: body for body in self.listed("StatefulSet")}
        if CLUSTER not in sets:
            return "there is no StatefulSet"
        volumes = sets[CLUSTER]["spec"]["template"]["spec"]["volumes"]
        names = {item["name"]: item["secret"]["secretName"] for item in volumes if "secret" in item}
        if (names["tls"], names.get("tls-ca")) != self.mounted:
            return f"members get {names}, wanted {self.mounted}"
        return next(filter(None, map(self._namesake, self.has_service)), "")

    def _namesake(self, name: str) -> str:
        found = {body["metadata"]["name"]: body for body in self.listed("Service")}
        if name not in found:
            return f"Service {name} is gone"
        metadata, spec = found[name]["metadata"], found[name]["spec"]
        is_owned = bool(metadata.get("ownerReferences"))
        if is_owned != self.has_service[name]:
            return f"Service {name} is owned: {is_owned}, wanted {self.has_service[name]}"
        is_theirs = spec["selector"] == SELECTOR
        return "" if is_theirs != is_owned else f"Service {name} selects {spec['selector']}"
