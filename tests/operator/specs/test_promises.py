"""What CRDs and documents promise of statuses, against the code: nothing is promised in vain."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import regex
from brokerd_operator import conditions
from brokerd_operator.broker.client import Target
from brokerd_operator.engine import keys
from brokerd_operator.engine.metrics import Metrics
from brokerd_operator.engine.ports import ClusterReport
from brokerd_operator.local.cluster import LocalCluster, LocalClusters
from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile.lifecycle import Pass
from brokerd_operator.reconcile.scaling import Step, StepKind
from brokerd_operator.settings import Settings
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import Identity, Meta, Reference
from brokerd_operator.validation import Validator, crd_directory

from tests.operator.engine.test_dead_letters import row
from tests.operator.engine.test_engine import Bench
from tests.operator.engine.test_warnings import everything, links, running
from tests.operator.fake_broker import PASSWORD, USER, FakeBroker
from tests.operator.resources import resource

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator" / "brokerd_operator"
VALIDATOR = Validator.from_directory()
KINDS = sorted(VALIDATOR.kinds)
CONDITIONS_PAGE = (ROOT / "docs" / "reference" / "conditions.md").read_text()
METRICS_PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()

#: Where statuses are put together.
WRITERS = [
    PACKAGE / "conditions.py",
    *(
        file
        for folder in ("engine", "sources", "local", "reconcile", "manifests")
        for file in sorted((PACKAGE / folder).glob("*.py"))
    ),
]
TREES = [ast.parse(file.read_text()) for file in WRITERS]


# ---- fields, by their whole paths ---------------------------------------------------------------


def promised(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Paths of the fields below a schema; those of a list's items follow the list's."""
    found: set[str] = set()
    for name, child in (schema.get("properties") or {}).items():
        found |= {f"{prefix}{name}"} | promised(child, f"{prefix}{name}.")
    return found | (promised(schema["items"], prefix) if "items" in schema else set())


def written(value: Any, prefix: str = "") -> set[str]:
    """Paths of the fields of a status that hold something."""
    found: set[str] = set()
    if isinstance(value, dict):
        for name, child in value.items():
            found |= {f"{prefix}{name}"} if child is not None else set()
            found |= written(child, f"{prefix}{name}.")
    elif isinstance(value, list | tuple):
        for item in value:
            found |= written(item, prefix)
    return found


class EveryCluster(KubernetesClusters):
    """Tells what a BrokerCluster's status may say: on Kubernetes, in the midst of an operation,
    or, if `is_local`, in the embedded mode. Behind it is the fake broker."""

    def __init__(self, broker: FakeBroker) -> None:
        nothing: Any = None
        super().__init__(nothing, Settings(), nothing, nothing)
        self.broker = broker
        self.is_local = False

    async def reconcile(self, body: Any, meta: Meta, spec: BrokerClusterSpec) -> ClusterReport:
        step, nobody = Step(StepKind.WAIT, reason="it waits"), LocalClusters.__new__(LocalClusters)
        if self.is_local:
            return nobody._report(LocalCluster(meta.name, "", Path(), ""), meta, spec, step, "")
        ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-23T01:00:00Z"}
        container = {"restartCount": 1, "lastState": {"terminated": ended}}
        pod = {
            "metadata": {"name": f"{meta.name}-0", "uid": "u"},
            "status": {"containerStatuses": [container]},
        }
        state = Pass(total=1, step=step, pods=(pod,), fenced=(f"{meta.name}-0",))
        claim = {"metadata": {"name": f"data-{meta.name}-0"}, "spec": {}, "status": {}}
        context = Context(meta, spec, Settings().images, "brokerd")
        stateful_set = {"status": {"replicas": 1}}
        return self._report(context, stateful_set, state, [claim])

    async def target(self, reference: Reference) -> Target:
        return Target((self.broker.address,), USER, PASSWORD, None)

    async def address(self, reference: Reference) -> None:
        return None


class Statuses:
    """Paths that the statuses of a bench have held, against those that the CRDs promise."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seen: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.promised = {
            kind: promised(VALIDATOR.kinds[kind].schema["properties"]["status"]) for kind in KINDS
        }

    def missing(self) -> set[str]:
        for body in self.bench.store.resources():
            self.seen[body["kind"]] |= written(body.get("status") or {})
        # One function writes this, whatever the kind.
        drift = {path for paths in self.seen.values() for path in paths if "drift." in path}
        return {
            f"{kind}.{path}"
            for kind in KINDS
            for path in self.promised[kind] - self.seen[kind] - drift
        }

    async def until_missing(self, *paths: str) -> None:
        """Wait until no others are missing; fails with those that are."""
        try:
            await self.bench.until("fields", lambda: self.missing() <= set(paths))
        except pytest.fail.Exception as error:
            raise AssertionError(f"never set: {self.missing() - set(paths)}") from error


async def test_every_field_of_a_status_is_set_by_a_pass_and_no_other(tmp_path: Path) -> None:
    """By its whole path, in statuses that were written for resources of all kinds."""
    broker = FakeBroker()
    broker.links = [{**row, "error": "refused"} for row in links("running", "starting")]
    shovel = {"type": "shovel", "upstream": "moves", "vhost": "/", "source_queue": "q"}
    broker.links.append({**shovel, "status": "error", "error": "refused"})
    broker.dead_letters = [row("q", 1, queues_more=1)]
    await broker.start()
    try:
        async with running(tmp_path, broker) as bench:
            driver, statuses = EveryCluster(broker), Statuses(bench)
            bench.engine.driver = driver
            bench.connect()
            everything(bench)
            cluster = resource("BrokerCluster", "orders")
            bench.apply(cluster)
            drift = {path for path in statuses.missing() if ".drift." in path}
            await statuses.until_missing("BrokerCluster.notApplied", *drift)
            bench.add("Policy", "one", pattern="^q", driftPolicy="Report")
            policy = Identity("policy", "/", "one")
            broker.put(policy, broker.objects[policy] | {"priority": 9}, broker.owners[policy])
            driver.is_local = True
            bench.apply({**cluster, "spec": {"networkPolicy": {"mode": "None"}}})
            await statuses.until_missing()
    finally:
        await broker.stop()
    for kind in KINDS:
        others = statuses.seen[kind] - statuses.promised[kind]
        assert not others, f"{kind}: the API server would drop them"


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_a_condition_is_of_one_that_is_set(kind: str) -> None:
    for column in VALIDATOR.kinds[kind].columns:
        named = regex.search(r'@\.type=="([A-Za-z]+)"', column.json_path)
        if named is not None:
            assert named[1] in conditions.OWNED, column


def condition_names() -> dict[str, str]:
    """Names of the constants in `conditions.py` that are types of conditions."""
    return {
        name: value
        for name, value in vars(conditions).items()
        if name.isupper() and isinstance(value, str) and value in conditions.OWNED
    }


def test_every_condition_type_is_set_by_something() -> None:
    names = condition_names()
    assert set(names.values()) == conditions.OWNED
    used: set[str] = set()
    for file, tree in zip(WRITERS, TREES, strict=True):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used |= {node.attr} if node.value.id == "conditions" else set()
            # In conditions.py itself only the builders of the standard ones count.
            elif isinstance(node, ast.Call) and file.name == "conditions.py":
                used |= {arg.id for arg in node.args if isinstance(arg, ast.Name)}
    assert not set(names) - used


def table(page: str, heading: str) -> str:
    """The text between a heading and the next."""
    _, _, rest = page.partition(f"\n## {heading}\n")
    assert rest, heading
    return rest.split("\n## ")[0]


def named_in(text: str) -> set[str]:
    return set(regex.findall(r"`([^`]+)`", text))


def test_every_reason_of_ready_stands_in_the_documents_with_its_meaning() -> None:
    documented: dict[str, str] = {}
    for line in table(CONDITIONS_PAGE, "Reasons of Ready").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].startswith("`"):
            documented |= dict.fromkeys(named_in(cells[1]), cells[2])
    assert set(documented) == set(conditions.REASONS)
    for reason, meaning in conditions.REASONS.items():
        state = [meaning.ready]
        state += ["Reconciling"] if meaning.is_reconciling else []
        state += ["Stalled"] if meaning.is_stalled else []
        assert documented[reason] == ", ".join(state), reason


def test_every_other_condition_reason_and_event_stands_in_the_documents() -> None:
    others = named_in(table(CONDITIONS_PAGE, "Other conditions"))
    standard = {conditions.READY, conditions.RECONCILING, conditions.STALLED}
    assert conditions.OWNED - standard <= others
    for type_, reasons in conditions.REASONS_OF.items():
        assert set(reasons) <= others, type_
    assert set(conditions.EVENT_REASONS) <= named_in(table(CONDITIONS_PAGE, "Events"))


def test_every_event_that_is_emitted_is_known() -> None:
    """Literal reasons, which stand behind the type."""
    known = {*conditions.EVENT_REASONS, *conditions.REASONS}
    found: dict[str, str] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("emit"):
                texts = [item.value for item in node.args if isinstance(item, ast.Constant)]
                if len(texts) > 1 and texts[0] in ("Normal", "Warning"):
                    found[str(texts[1])] = file.name
    assert len(found) > 5
    assert {reason: file for reason, file in found.items() if reason not in known} == {}


def test_every_reason_that_is_built_is_known() -> None:
    """Literal reasons of `conditions.build`; `standard` looks its own up."""
    known = {reason for reasons in conditions.REASONS_OF.values() for reason in reasons}
    known |= set(conditions.REASONS)
    for file, tree in zip(WRITERS, TREES, strict=True):
        for node in ast.walk(tree):
            is_build = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "conditions.build",
                "build",
            )
            if is_build and len(node.args) > 2 and isinstance(node.args[2], ast.Constant):
                assert node.args[2].value in known, f"{file.name}: {node.args[2].value}"


def test_every_annotation_that_is_read_stands_in_the_documents() -> None:
    page = table(CONDITIONS_PAGE, "Annotations")
    for annotation in (*keys.READ_ANNOTATIONS, naming.ADOPT):
        assert annotation in page


def test_the_tests_that_the_runbook_names_are_there() -> None:
    page = (ROOT / "docs" / "runbook" / "beside-others.md").read_text()
    found = regex.findall(r"`((?:tests/[\w/]+/)?\w+\.py)`", page)
    assert found
    for name in found:
        pattern = name if "/" in name else f"tests/operator/**/{name}"
        assert list(ROOT.glob(pattern)), name


def test_every_metric_of_the_operator_stands_in_the_documents() -> None:
    page = table(METRICS_PAGE, "Of the operator")
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in page or f"`{name}{{" in page, name


def test_directory_of_the_crds_is_the_one_that_is_shipped() -> None:
    assert crd_directory() == ROOT / "crds"
