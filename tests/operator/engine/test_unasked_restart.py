"""Members that cannot be asked because of the certificates that they show (ADR 71).

With real handshakes; on real nodes goes tests/e2e/test_own_certificate.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from brokerd_operator.broker import members
from brokerd_operator.broker.client import Target
from brokerd_operator.manifests import naming
from brokerd_operator.reconcile import lifecycle, rollout, scaling
from brokerd_operator.reconcile.lifecycle import Pass
from brokerd_operator.reconcile.scaling import Distrust, Step, StepKind
from brokerd_operator.settings import Settings
from brokerd_operator.sources import shown_certificates
from brokerd_operator.sources.cluster_objects import Refusals
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.sources.secret_reads import SecretReads

from tests.authorities import Authority, Pair
from tests.operator.fake_broker import PASSWORD, USER
from tests.operator.manifests.test_manifests import context
from tests.operator.reconcile.test_rollout import applied
from tests.operator.reconcile.test_scaling import fleet, names
from tests.ports import free_ports

ROOT, OTHER = Authority("corp root"), Authority("other")
HOSTS = [f"orders-{ordinal}.orders-nodes.shop.svc" for ordinal in range(2)]
COMPANY = {"secretName": "company", "caSecretName": "company-ca"}
NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)


# ---- what members show --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def showing(folder: Path, *pairs: Pair) -> AsyncIterator[tuple[str, ...]]:
    """Addresses of servers that show these certificates."""
    servers = []
    for number, pair in enumerate(pairs):
        file = folder / f"{number}.pem"
        file.write_bytes(pair.certificate + pair.key)
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(file)
        servers.append(await asyncio.start_server(_end, "127.0.0.1", 0, ssl=shown))
    try:
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        yield tuple(f"localhost:{port}" for port in ports)
    finally:
        for server in servers:
            server.close()
            await server.wait_closed()


async def _end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def target(*addresses: str, trusted: Authority = ROOT) -> Target:
    return Target(addresses, USER, PASSWORD, trusted.certificate)


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (ROOT.issue("localhost", seconds=-5), "certificate has expired"),
        (OTHER.issue("localhost"), "unable to get local issuer certificate"),
        (ROOT.issue("elsewhere"), "Hostname mismatch, certificate is not valid for 'localhost'"),
    ],
)
async def test_a_certificate_that_is_refused_is_named_with_its_subject_issuer_and_end(
    tmp_path: Path, pair: Pair, why: str
) -> None:
    async with showing(tmp_path, pair) as addresses:
        said = await shown_certificates.problem(target(*addresses))
    assert said.startswith(f"TLS certificate of localhost: {why} (subject CN=")
    assert ", issuer CN=" in said
    assert ", expires 20" in said


async def test_all_else_is_no_matter_of_certificates(tmp_path: Path) -> None:
    """A timeout, a refused connection, another protocol; one member of them is enough."""
    bad = ROOT.issue("localhost", seconds=-5)
    (closed,) = free_ports(1)
    plain = await asyncio.start_server(_end, "127.0.0.1", 0)
    other = f"localhost:{plain.sockets[0].getsockname()[1]}"
    async with showing(tmp_path, bad, ROOT.issue("localhost")) as (expired, good):
        for second in (good, f"localhost:{closed}", other, "no-such-host.invalid:1"):
            assert await shown_certificates.problem(target(expired, second)) == ""
        assert await shown_certificates.problem(target(expired)) != ""
        nothing = Target((expired,), USER, PASSWORD, b"no certificate at all")
        assert await shown_certificates.problem(nothing) == ""
    plain.close()
    await plain.wait_closed()


async def test_a_member_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shown_certificates, "HANDSHAKE_TIMEOUT_S", 0.05)
    done = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"localhost:{server.sockets[0].getsockname()[1]}"
    assert await shown_certificates.problem(target(address)) == ""
    done.set()
    server.close()
    await server.wait_closed()


# ---- what is decided ----------------------------------------------------------------------------

DISTRUST = Distrust("TLS certificate of prod-0: certificate has expired")


def unasked(distrust: Distrust | None = DISTRUST, **fields: Any) -> Step:
    known = {"listed": None, "outdated": names(0, 1, 2), "distrust": distrust}
    return scaling.next_step(fleet(3, 3, **known | fields))


def test_the_first_member_is_restarted_by_readiness_where_its_certificate_is_why() -> None:
    step = unasked()
    assert (step.kind, step.member) == (StepKind.RESTART, "prod-2")
    said = "since Kubernetes says that all members are ready; no member can be asked: TLS cert"
    assert said in scaling.said(step)
    assert unasked(None) == Step(StepKind.WAIT, reason="no member can be asked yet")


def test_what_restrains_a_restart_restrains_it_all_the_same() -> None:
    waits = unasked(ready=names(0, 1), outdated=names(0, 1))
    assert (waits.kind, waits.reason) == (StepKind.WAIT, "prod-2 is not ready yet")
    assert unasked(held="prod-1 is fenced") == Step(StepKind.HOLD, reason="prod-1 is fenced")
    changing = unasked(template="StatefulSet prod: spec")
    assert (changing.kind, changing.unasked) == (StepKind.WAIT, "")
    no = unasked(Distrust("expired", "Secret company: the key is not the certificate's"))
    assert no.kind is StepKind.WAIT
    assert no.reason == (
        "no member can be asked: expired; Secret company: the key is not the certificate's"
    )


def test_nothing_is_added_or_removed_unasked() -> None:
    step = scaling.next_step(fleet(5, 3, listed=None, distrust=DISTRUST))
    assert step.kind is StepKind.WAIT
    assert "certificate has expired" in step.reason


def pod(ordinal: int, *secrets: str, ready_s: float = 100.0) -> dict[str, Any]:
    turned = (NOW - datetime.timedelta(seconds=ready_s)).isoformat()
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": turned}
    volumes = [
        naming.secret_volume(name, secret)
        for name, secret in zip(("tls", "tls-ca"), secrets, strict=False)
    ]
    return {
        "metadata": {
            "name": f"orders-{ordinal}",
            "labels": {rollout.REVISION_LABEL: "orders-old"},
        },
        "spec": {"volumes": volumes},
        "status": {"conditions": [ready]},
    }


def test_a_restart_must_bring_another_certificate_and_find_all_settled() -> None:
    old = [pod(0, "old", "old-ca"), pod(1, "old", "old-ca")]
    assert rollout.unasked_obstacle(old, ("company", "company-ca"), NOW) == ""
    assert rollout.unasked_obstacle(old, ("old", None), NOW) == ""
    # In place: members read their files again by themselves.
    said = rollout.unasked_obstacle(old, ("old", "old-ca"), NOW)
    assert said.startswith("orders-0 was made with Secret old already")
    # The first one has it, and cannot be asked all the same: the next would not help either.
    one = [old[0], pod(1, "company", "company-ca")]
    said = rollout.unasked_obstacle(one, ("company", "company-ca"), NOW)
    assert said.startswith("orders-1 was made with Secret company already")
    fresh = [old[0], pod(1, "old", "old-ca", ready_s=59)]
    said = rollout.unasked_obstacle(fresh, ("company", "company-ca"), NOW)
    assert said == "one is restarted when all have been ready for 60 s"
    undated = pod(1, "old", "old-ca")
    del undated["status"]["conditions"][0]["lastTransitionTime"]
    assert rollout.unasked_obstacle([undated], ("company", None), NOW) == said


def test_ready_says_why_members_that_run_cannot_be_asked() -> None:
    ready = frozenset(("a", "b", "c"))
    state = Pass(3, Step(StepKind.DONE), ready=ready, distrust="TLS certificate of a: expired")
    reason, message = lifecycle.verdict(context().spec, state)
    assert reason == "WaitingForBroker"
    assert message == (
        "3 of 3 members are ready; no member can be asked: TLS certificate of a: expired"
    )


# ---- a pass -------------------------------------------------------------------------------------


class Api:
    """Two members that run the template of before, and Secrets."""

    def __init__(self, pods: list[dict[str, Any]], secrets: dict[str, dict[str, bytes]]) -> None:
        self.pods, self.secrets = pods, secrets
        self.deleted: list[str] = []

    async def get(self, path: str) -> Any:
        data = self.secrets.get(path.rpartition("/")[2])
        return None if data is None else {"metadata": {}, "data": naming.encoded(data)}

    async def list(self, path: str, selector: str = "") -> Any:
        return self.pods, ""

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rpartition("/")[2])

    async def apply(self, manifest: dict[str, Any], *, is_dry: bool) -> dict[str, Any]:
        return manifest


class Driver(KubernetesClusters):
    """Reaches members at other addresses than DNS would name."""

    def __init__(self, api: Api, addresses: tuple[str, ...]) -> None:
        self.events: list[tuple[str, str, str]] = []
        asked: Any = api
        super().__init__(asked, Settings(), self._note, SecretReads(asked))
        self.addresses = addresses

    async def _note(self, body: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def _address(self, _: Any, member: str) -> str:
        return self.addresses[int(member.rpartition("-")[2])]

    async def _target(self, *_: Any, without: str = "", **__: Any) -> Target:
        left = self._address(None, without) if without else ""
        return target(*(address for address in self.addresses if address != left))


def company(pair: Pair) -> dict[str, dict[str, bytes]]:
    """Secrets `company` and `company-ca`."""
    served = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return {"company": served, "company-ca": {"ca.crt": ROOT.certificate}}


LOCAL = ROOT.issue("localhost")
EXPIRED = ROOT.issue("localhost", seconds=-5)
GOOD = ROOT.issue(*HOSTS)


async def passed(
    folder: Path, secrets: dict[str, dict[str, bytes]], *shown: Pair, ready_s: float = 3600
) -> tuple[Driver, Api, Any]:
    """One pass over members with an older Secret, which show these certificates."""
    made = context(replicas=2, tls=COMPANY)
    since_s = ready_s - (datetime.datetime.now(datetime.UTC) - NOW).total_seconds()
    api = Api([pod(0, "old", "old-ca", ready_s=since_s), pod(1, "old", "old-ca")], secrets)
    api.pods[1]["status"] = api.pods[0]["status"]
    live = applied(made, 2)
    async with showing(folder, *shown) as addresses:
        driver = Driver(api, addresses)
        taken = await driver._next_step({}, made, live, Refusals())
    return driver, api, taken


async def test_one_member_gets_the_good_certificate_and_an_event_says_why(tmp_path: Path) -> None:
    driver, api, taken = await passed(tmp_path, company(GOOD), EXPIRED, EXPIRED)
    assert (taken.problem, taken.step.kind) == ("", StepKind.RESTART)
    assert api.deleted == ["orders-1"]
    ((type_, reason, message),) = driver.events
    assert (type_, reason) == ("Warning", "RestartedUnasked")
    assert "certificate has expired (subject CN=localhost, issuer CN=corp root" in message
    operation = scaling.operation(taken.step, 2, 2, "")
    assert operation is not None
    assert operation["phase"] == "Restarting"
    assert "Kubernetes says that all members are ready" in operation["step"]


@pytest.mark.parametrize(
    ("secrets", "second", "ready_s"),
    [
        # Bad itself; of a member that would let itself be asked; not settled.
        (company(Pair(GOOD.certificate, OTHER.issue("x").key)), EXPIRED, 3600),
        (company(ROOT.issue(*HOSTS, seconds=-5)), EXPIRED, 3600),
        (company(ROOT.issue(HOSTS[0])), EXPIRED, 3600),
        (company(GOOD), ROOT.issue("localhost"), 3600),
        (company(GOOD), EXPIRED, 30),
    ],
)
async def test_no_member_is_restarted_unasked_otherwise(
    tmp_path: Path, secrets: dict[str, dict[str, bytes]], second: Pair, ready_s: float
) -> None:
    driver, api, taken = await passed(tmp_path, secrets, EXPIRED, second, ready_s=ready_s)
    assert (api.deleted, driver.events) == ([], [])
    assert taken.step.kind in (StepKind.WAIT, StepKind.HOLD)
    assert taken.step.reason


@pytest.mark.parametrize(
    ("newest", "ready_s", "reasons", "restarted"),
    [
        ("company", 3600, [], ["orders-1"]),
        # The newest one's is refused as well; not settled; it minds.
        ("old", 3600, [], []),
        ("company", 30, [], []),
        ("company", 3600, ["jobs has no other replica"], []),
    ],
)
async def test_the_next_ones_are_asked_about_by_those_that_can_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    newest: str,
    ready_s: float,
    reasons: list[str],
    restarted: list[str],
) -> None:
    """Three members, of which the newest has been restarted to the good certificate."""
    asked: list[tuple[str, ...]] = []

    async def carry_out(of: Target, step: Step, _: str) -> str:
        asked.append(of.addresses)
        return "cannot be reached" if len(of.addresses) > 1 else "; ".join(reasons)

    monkeypatch.setattr(members, "carry_out", carry_out)
    made = context(replicas=3, tls=COMPANY)
    since_s = ready_s - (datetime.datetime.now(datetime.UTC) - NOW).total_seconds()
    secrets = ("old", "old", newest)
    pods = [pod(number, name, f"{name}-ca", ready_s=since_s) for number, name in enumerate(secrets)]
    api = Api(pods, company(GOOD))
    shown = EXPIRED if newest == "old" else LOCAL
    async with showing(tmp_path, EXPIRED, EXPIRED, shown) as addresses:
        driver = Driver(api, addresses)
        step = Step(StepKind.RESTART, "orders-1")
        problem = await driver._take({}, made, step, 3, Refusals(), pods, is_up=True)
    assert api.deleted == restarted
    assert bool(problem) is not bool(restarted)
    assert [reason for _, reason, _ in driver.events] == ["RestartedUnasked"] * len(restarted)
    if restarted:
        assert asked == [(addresses[0], addresses[2]), (addresses[2],)]
