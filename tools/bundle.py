"""Writes the OLM bundle of the operator into a folder: manifests/, metadata/ and a Dockerfile.

Nothing of it is kept by hand: custom resources come from crds/, pods and rights from what Helm
renders of the operator's chart, examples from examples/. For the Operator Lifecycle Manager; `make
bundle` runs it and then tools/olm, which judges the result. The bundle has one install mode,
AllNamespaces, which is the chart's `watchNamespaces: ["*"]`: the operator reads Secrets by name
only and lists none (SEC-26). For single namespaces, install the chart.

    python tools/bundle.py --out build/bundle --helm HELM [--values FILE]
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "brokerd-operator"
PACKAGE = "brokerd-operator"
CHANNEL = "candidate"
#: Kinds in the order in which a person meets them; the first one of each in a file of examples/ is
#: the example, else the least that the kind must say.
KINDS = {
    "BrokerCluster": {},
    "BrokerConnection": {
        "endpoints": ["broker.example:5680"],
        "credentialsSecretRef": {"name": "broker-login"},
    },
    "Vhost": {},
    "Exchange": {},
    "Queue": {},
    "Binding": {},
    "Policy": {},
    "OperatorPolicy": {"pattern": ".*", "definition": {"maxLength": 1000000}},
    "User": {},
    "Permission": {"user": "web", "configure": "", "write": "^orders", "read": ""},
    "TopicPermission": {"user": "web", "exchange": "orders", "write": "^web[.]", "read": ""},
    "FederationUpstream": {},
    "FederationUpstreamSet": {"upstreams": [{"name": "warehouse"}]},
    "Shovel": {
        "source": {"queue": "orders"},
        "destination": {"uriSecretRef": {"name": "warehouse"}, "queue": "orders"},
    },
}
OF_NO_BROKER = ("BrokerCluster", "BrokerConnection")
#: Of Helm, which is not there.
HELMS_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
ANNOTATIONS = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": PACKAGE,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
}
DESCRIPTION = """brokerd is a clustered message broker that speaks AMQP 0-9-1. The operator runs its
clusters and keeps queues, exchanges, bindings, policies, users and federation as they are declared:
members come and go one safe step at a time, volumes grow, certificates rotate without a restart,
and what clients changed behind its back is put right.

The operator watches all namespaces and reads Secrets only by the names that resources give. To
restrict it to some namespaces install its Helm chart instead.
"""

Json = dict[str, Any]


def rendered(helm: str, values: Path | None) -> list[Json]:
    """What Helm makes of the chart for all namespaces."""
    command = [helm, "template", "brokerd", str(CHART), "--namespace", PACKAGE]
    command += ["--set", "watchNamespaces={*}", "--set", "crds.create=false"]
    if values is not None:
        command += ["--values", str(values)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def one(items: list[Json], kind: str, name: str = "") -> Json:
    """The only object of a kind, or the one with this end of its name."""
    (found,) = [
        item for item in items if item["kind"] == kind and item["metadata"]["name"].endswith(name)
    ]
    return found


def crds() -> list[Json]:
    return [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


def examples() -> list[Json]:
    """One resource of each kind."""
    written: dict[str, Json] = {}
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            if item and item.get("apiVersion", "").startswith("brokerd.io/"):
                written.setdefault(item["kind"], item)
    made = []
    for kind, spec in KINDS.items():
        broker = {} if kind in OF_NO_BROKER else {"brokerRef": {"name": "shop"}}
        least = {
            "apiVersion": "brokerd.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": "example"},
            "spec": {**broker, **spec},
        }
        made.append(written.get(kind, least))
    return made


def owned(crd: Json) -> Json:
    spec = crd["spec"]
    (version,) = [item["name"] for item in spec["versions"] if item["storage"]]
    description = spec["versions"][0]["schema"]["openAPIV3Schema"]["description"]
    return {
        "name": crd["metadata"]["name"],
        "kind": spec["names"]["kind"],
        "version": version,
        "displayName": spec["names"]["kind"],
        "description": description,
    }


def deployment(items: list[Json]) -> Json:
    """The chart's Deployment as a CSV names it, without Helm's labels."""
    found = one(items, "Deployment")
    for labels in (found["metadata"]["labels"], found["spec"]["template"]["metadata"]["labels"]):
        for key in HELMS_LABELS:
            labels.pop(key, None)
    return {
        "name": found["metadata"]["name"],
        "label": found["metadata"]["labels"],
        "spec": found["spec"],
    }


def related_images(pod: Json) -> list[Json]:
    """All images that are pulled in the end, for clusters that mirror them."""
    (container,) = pod["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    return [
        {"name": "operator", "image": container["image"]},
        {"name": "broker", "image": env["BROKERD_OPERATOR_BROKER_IMAGE"]},
        {"name": "telemetry", "image": env["BROKERD_OPERATOR_TELEMETRY_IMAGE"]},
    ]


def cluster_service_version(items: list[Json]) -> Json:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    made = deployment(items)
    pod = made["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    version = chart["version"]
    icon = base64.b64encode((ROOT / "docs" / "images" / "icon.svg").read_bytes()).decode()
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "annotations": {
                "alm-examples": json.dumps(examples(), indent=2, ensure_ascii=False),
                "capabilities": "Seamless Upgrades",
                "categories": "Streaming & Messaging",
                "containerImage": pod["containers"][0]["image"],
                "description": chart["description"],
            },
        },
        "spec": {
            "displayName": "brokerd",
            "description": DESCRIPTION,
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": chart["kubeVersion"].removeprefix(">=").removesuffix("-0"),
            "keywords": chart["keywords"],
            "provider": {"name": "brokerd"},
            "icon": [{"base64data": icon, "mediatype": "image/svg+xml"}],
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": [owned(crd) for crd in crds()]},
            "relatedImages": related_images(pod),
            "install": {
                "strategy": "deployment",
                "spec": {
                    "deployments": [made],
                    "clusterPermissions": [
                        {
                            "serviceAccountName": account,
                            "rules": one(items, "ClusterRole", f"{PACKAGE}")["rules"],
                        }
                    ],
                    "permissions": [
                        {"serviceAccountName": account, "rules": one(items, "Role")["rules"]}
                    ],
                },
            },
        },
    }


def dockerfile() -> str:
    labels = "".join(f"LABEL {key}={value}\n" for key, value in ANNOTATIONS.items())
    return f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"


def write(out: Path, items: list[Json]) -> None:
    """The whole bundle; a former one in that folder goes."""
    if out.exists() and not (out / "metadata" / "annotations.yaml").exists():
        raise SystemExit(f"{out} is there and no bundle")
    shutil.rmtree(out, ignore_errors=True)
    manifests = out / "manifests"
    manifests.mkdir(parents=True)
    (out / "metadata").mkdir()
    for crd in crds():
        (manifests / f"{crd['metadata']['name']}.yaml").write_text(dumped(crd))
    csv = cluster_service_version(items)
    (manifests / f"{PACKAGE}.clusterserviceversion.yaml").write_text(dumped(csv))
    (out / "metadata" / "annotations.yaml").write_text(dumped({"annotations": ANNOTATIONS}))
    (out / "Dockerfile").write_text(dockerfile())


def dumped(item: Json) -> str:
    return yaml.safe_dump(item, sort_keys=False, allow_unicode=True, width=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--helm", default="helm")
    parser.add_argument("--values", type=Path, help="values of the chart, such as images by digest")
    args = parser.parse_args()
    write(args.out, rendered(args.helm, args.values))
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
