"""What `kubectl brokerd` makes of bodies and rows, without Kubernetes and without a broker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import rich.console
from brokerd_operator.plugin import connecting, figures, health, member_access, showing
from brokerd_operator.plugin.figures import Look
from brokerd_operator.plugin.health import Health, Member
from brokerd_operator.plugin.kubectl import Kubectl, KubectlError, NoSuchKind, refusal

from tests.operator.operator_process import wait_for
from tests.operator.resources import resource

Body = dict[str, Any]


def condition(type_: str, status: str, reason: str, message: str = "") -> Body:
    return {"type": type_, "status": status, "reason": reason, "message": message}


GOOD = (
    condition("Ready", "True", "Available", "3 of 3 members are ready"),
    condition("Available", "True", "Majority"),
    condition("AllReplicasReady", "True", "AllReady"),
    condition("MemoryAlarm", "False", "NoAlarm"),
    condition("CertificatesValid", "True", "Valid", "the first to expire is Secret x, in 2027"),
)


def broker(*conditions: Body, **spec: Any) -> Body:
    return {
        "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "generation": 1},
        "spec": {"replicas": 3, **spec},
        "status": {
            "observedGeneration": 1,
            "conditions": list(conditions or GOOD),
            "image": "registry.example/brokerd:1",
            "adminSecret": "orders-admin",
            "endpoints": {"amqps": "orders.shop.svc:5671"},
        },
    }


def pod(ordinal: int, ready: str = "True", phase: str = "Running", **status: Any) -> Body:
    return {
        "metadata": {"name": f"orders-{ordinal}", "namespace": "shop"},
        "spec": {"nodeName": f"node-{ordinal}"},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"restartCount": ordinal}],
            **status,
        },
    }


def claim(ordinal: int, phase: str = "Bound") -> Body:
    return {
        "metadata": {"name": f"data-orders-{ordinal}"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
        "status": {"phase": phase, "capacity": {"storage": "1Gi"} if phase == "Bound" else {}},
    }


PODS = [pod(0), pod(1), pod(2)]
CLAIMS = [claim(0), claim(1), claim(2)]


def queue(name: str, *conditions: Body, **spec: Any) -> Body:
    body = resource("Queue", name, brokerRef={"name": "orders"}, **spec)
    body["metadata"] |= {"namespace": "shop", "generation": 1}
    body["status"] = {"observedGeneration": 1, "conditions": list(conditions)}
    return body


def judged(cluster: Body | None = None, resources: tuple[Body, ...] = ()) -> Health:
    return health.of(cluster or broker(), PODS, CLAIMS, resources)


def text_of(found: Health) -> str:
    out = rich.console.Console(file=io.StringIO(), width=200, markup=False)
    showing.show_health(out, found)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


# ---- health -------------------------------------------------------------------------------------


def test_a_cluster_that_is_well_is_healthy_and_shown_without_complaints() -> None:
    found = judged(resources=(queue("q", condition("Ready", "True", "Applied")),))
    assert found.is_healthy
    assert (found.ready, found.wanted, found.conditions, found.topology) == (3, 3, (), ())
    shown = text_of(found)
    assert "healthy" in shown
    assert "NOT HEALTHY" not in shown
    for part in ("orders-2", "node-2", "data-orders-1", "1 of 1 ready", "in 2027"):
        assert part in shown
    assert "2Gi are asked for" in shown, "a volume that is still to grow says so"


@pytest.mark.parametrize(
    ("bad", "is_bad"),
    [
        (condition("Ready", "False", "WaitingForMembers"), True),
        (condition("Ready", "Unknown", "Paused"), False),
        (condition("Stalled", "True", "BrokerRefused"), True),
        (condition("MemoryAlarm", "True", "Alarm"), True),
        (condition("MemoryAlarm", "Unknown", "NotAsked"), None),
        (condition("QuorumCritical", "True", "Critical"), True),
        (condition("CertificatesValid", "False", "Expiring"), True),
        (condition("CredentialsSynced", "False", "Refused"), True),
        (condition("UpgradePending", "True", "Approval"), False),
        (condition("Warning", "True", "Cycle"), False),
        (condition("KeptAside", "True", "KeptAside"), True),
        (condition("Healthy", "Unknown", "Stale"), False),
        (condition("TelemetryFresh", "False", "Stale"), False),
        (condition("SomethingNew", "False", "Broken"), True),
    ],
)
def test_conditions_are_judged_by_their_sense(bad: Body, is_bad: bool | None) -> None:
    found = judged(broker(*(item for item in GOOD if item["type"] != bad["type"]), bad))
    assert [item.is_bad for item in found.conditions] == ([] if is_bad is None else [is_bad])
    assert found.is_healthy == (not is_bad)


@pytest.mark.parametrize(
    ("change", "state", "note"),
    [
        ({"ready": "False"}, "NotReady", ""),
        ({"phase": "Pending", "containerStatuses": []}, "Pending", ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "CrashLoopBackOff",
            "",
        ),
        (
            {
                "ready": "False",
                "containerStatuses": [
                    {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ],
            },
            "NotReady",
            "ended before: OOMKilled, status 137",
        ),
    ],
)
def test_a_member_that_is_not_well_is_named_with_the_reason(
    change: Body, state: str, note: str
) -> None:
    found = health.of(broker(), [pod(0), pod(1), pod(2, **change)], CLAIMS, [])
    assert (found.members[2].state, found.members[2].note) == (state, note)
    assert not found.is_healthy


def test_a_member_without_a_pod_is_missing_but_not_where_pods_could_not_be_listed() -> None:
    assert [item.state for item in health.of(broker(), PODS[:2], CLAIMS, []).members] == [
        *("Ready", "Ready", "Missing")
    ]
    blind = health.of(broker(), [], [], [], ["may not list pods"], are_pods_seen=False)
    assert blind.members == ()
    assert blind.is_healthy
    assert "not looked at: may not list pods" in text_of(blind)


def test_a_volume_that_is_not_bound_is_bad() -> None:
    assert not health.of(broker(), PODS, [*CLAIMS[:2], claim(2, "Lost")], []).is_healthy


@pytest.mark.parametrize("spec", [{"replicas": 0}, {"hibernated": True}])
def test_a_cluster_that_rests_is_healthy_without_members(spec: Body) -> None:
    resting = broker(
        condition("Ready", "True", "Stopped"),
        condition("Available", "False", "NoMajority"),
        condition("AllReplicasReady", "False", "NotAllReady"),
        **spec,
    )
    found = health.of(resting, [], CLAIMS, [])
    assert (found.is_resting, found.is_healthy, found.members) == (True, True, ())


def test_only_resources_of_the_cluster_count_and_the_bad_ones_are_named() -> None:
    bad = condition("Ready", "False", "NotGranted", "vhost b is not granted")
    here = queue("here", bad, condition("Stalled", "True", "NotGranted", "the same"))
    elsewhere = queue("elsewhere", bad)
    elsewhere["metadata"]["namespace"] = "other"
    granted = queue("granted", bad)
    granted["metadata"]["namespace"] = "other"
    connection = queue("c", bad)
    connection["spec"]["brokerRef"]["kind"] = "BrokerConnection"
    granted["spec"]["brokerRef"] = {"name": "orders", "namespace": "shop"}
    warned = queue(
        "w", condition("Ready", "True", "Applied"), condition("Warning", "True", "Cycle")
    )
    found = judged(resources=(here, elsewhere, granted, connection, warned))
    assert [(item.resource, item.type, item.is_bad) for item in found.topology] == [
        ("Queue here", "Ready", True),
        ("Queue other/granted", "Ready", True),
        ("Queue w", "Warning", False),
    ]
    assert "1 of 3 ready" in text_of(found)


def test_what_the_operator_has_not_looked_at_is_not_healthy() -> None:
    fresh = queue("q")
    fresh["status"] = {"observedGeneration": -1}
    assert not judged(resources=(fresh,)).is_healthy
    edited = queue("q", condition("Ready", "True", "Applied"))
    edited["metadata"]["generation"] = 2
    [finding] = judged(resources=(edited,)).topology
    assert finding.reason == "InProgress"
    going = broker()
    going["metadata"]["deletionTimestamp"] = "now"
    assert judged(going).conditions[0].reason == "Terminating"
    untouched = broker()
    untouched["status"] = {}
    assert not judged(untouched).is_healthy


def test_bodies_that_make_no_sense_are_borne() -> None:
    odd: Body = {"metadata": {"name": 7}, "spec": [], "status": {"endpoints": "x", "members": 1}}
    found = health.of(odd, [{}, {"status": None}], [{}], [{"kind": "Queue"}, {}])
    assert not found.is_healthy
    text_of(found)


def test_names_and_messages_cannot_steer_the_terminal() -> None:
    nasty = queue("q", condition("Ready", "False", "BrokerRefused", "\x1b[2J[red]\nHEALTHY"))
    shown = text_of(judged(resources=(nasty,)))
    assert "\x1b[2J" not in shown
    assert "\\x1b[2J[red]\\nHEALTHY" in shown


def test_json_has_what_is_shown() -> None:
    [body] = json.loads(showing.to_json([judged()]))["clusters"]
    assert body["isHealthy"] is True
    assert body["members"][1] == {
        "name": "orders-1",
        "state": "Ready",
        "node": "node-1",
        "restarts": 1,
        "note": "",
    }
    assert {"conditions", "volumes", "topology", "topologyTotal", "unseen"} <= body.keys()


# ---- whom to talk to ----------------------------------------------------------------------------

MEMBERS = (Member("orders-0", "Ready"), Member("orders-1", "NotReady"), Member("orders-2", "Ready"))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ((), ["orders-0", "orders-2"]),
        (("1",), ["orders-1"]),
        (("orders-2", "2", "0"), ["orders-2", "orders-0"]),
    ],
)
def test_members_are_chosen_by_name_ordinal_or_readiness(
    wanted: tuple[str, ...], names: list[str]
) -> None:
    assert member_access.chosen(broker(), MEMBERS, wanted) == names


@pytest.mark.parametrize(
    ("cluster", "found", "wanted", "said"),
    [
        (broker(replicas=0), (), (), "hibernated"),
        (broker(), (), (), "no member of orders runs"),
        (broker(), (Member("orders-0", "Pending"),), (), r"orders-0 \(Pending\)"),
        (broker(), MEMBERS, ("7",), r"no member orders-7; there are: orders-0 \(Ready\)"),
        (broker(), (Member("orders-0", "CrashLoopBackOff"),), ("0",), "does not run"),
    ],
)
def test_why_nobody_can_be_talked_to_is_said(
    cluster: Body, found: tuple[Member, ...], wanted: tuple[str, ...], said: str
) -> None:
    with pytest.raises(KubectlError, match=said):
        member_access.chosen(cluster, found, wanted)


def test_connect_tells_the_way_and_no_password() -> None:
    shown = "\n".join(connecting.lines(broker()))
    assert "amqps://orders.shop.svc:5671" in shown
    assert "kubectl -n shop port-forward service/orders 5672" in shown
    assert "Secret orders-admin" in shown
    assert "hunter2" in "\n".join(connecting.lines(broker(), "admin", "hunter2"))
    hidden = "\n".join(connecting.lines(broker(tls={"disablePlain": True})))
    assert "5672" not in hidden
    assert "https://orders.shop.svc:15671/api/" in hidden
    assert "http://orders.shop.svc:15672/api/" in shown
    assert "kubectl brokerd -n shop manage orders" in shown


def test_the_page_is_told_with_the_way_to_its_login() -> None:
    plain = connecting.page_lines(broker(), "orders-1", "http://127.0.0.1:7/")
    assert plain[0] == "http://127.0.0.1:7/ leads to orders-1, until Ctrl-C"
    assert "get secret orders-admin" in plain[-1]
    assert "certificate" not in "\n".join(plain)
    secret = broker(tls={"disablePlain": True})
    assert connecting.way_to_page(secret) == ("https", 15671)
    told = connecting.page_lines(secret, "orders-1", "https://127.0.0.1:7/", "admin", "hunter2")
    assert "orders.shop.svc" in told[1], "what a browser complains about"
    assert told[-1].endswith("hunter2")


# ---- kubectl ------------------------------------------------------------------------------------


def test_a_missing_right_is_named_with_the_rule_that_grants_it() -> None:
    said = (
        'Error from server (Forbidden): pods "orders-0" is forbidden: User "ann" cannot create '
        'resource "pods/portforward" in API group "" in the namespace "shop"'
    )
    error = refusal(said)
    assert error.exit_code == 77
    assert "ann may not create pods/portforward in namespace shop" in error.message
    assert 'resources ["pods/portforward"], verbs ["create"]' in error.message
    assert isinstance(refusal('error: the server doesn\'t have a resource type "x"'), NoSuchKind)


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({}, "orders-tls"),
        ({"secretName": "company"}, "company"),
        ({"secretName": "company", "caSecretName": "root"}, "root"),
        ({"issuerRef": {"name": "corp"}}, "orders-issued-tls"),
        ({"issuerRef": {"name": "corp"}, "caSecretName": "root"}, "root"),
    ],
)
def test_the_authority_is_that_of_the_certificate_that_members_show(
    tls: dict[str, Any], expected: str
) -> None:
    """An issuer's certificate lies in another Secret than the operator's own."""
    body = {"metadata": {"name": "orders"}, "spec": {"tls": tls}}
    assert member_access.authority_secret(body) == expected


def test_lines_of_kubectls_log_are_left_out() -> None:
    said = 'E1122 21:01:56.532683   32623 memcache.go:265] "Unhandled"\nThe server was refused'
    assert refusal(said).message == "kubectl: The server was refused"


def test_a_missing_kubectl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")
    with pytest.raises(KubectlError, match="/nowhere/kubectl is not there"):
        Kubectl.find()


def test_the_persons_flags_are_passed_on() -> None:
    kubectl = Kubectl("k", ("--context=c",), "shop")
    assert kubectl.command("get", "x") == ["k", "--context=c", "--namespace=shop", "get", "x"]
    assert "--namespace=other" in kubectl.command("get", namespace="other")


# ---- port-forward -------------------------------------------------------------------------------

FORWARDING = """
import sys, time
print("Forwarding from 127.0.0.1:41234 -> 5680", flush=True)
# More than a pipe holds: whoever does not read it stops the other side.
sys.stdout.write("Handling connection for 41234\\n" * 10_000); sys.stdout.flush()
print("read", file=open(sys.argv[1], "w"), flush=True)
sys.stdin.read()
import signal; signal.pause()
"""


def test_a_forward_is_read_to_the_end_and_ends_with_its_block(tmp_path: Path) -> None:
    read = tmp_path / "read"
    pids: list[int] = []
    started = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        process = started(*args, **options)
        pids.append(process.pid)
        return process

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ZeroDivisionError):
        patch.setattr(subprocess, "Popen", noted)
        with member_access.forwarded([sys.executable, "-c", FORWARDING, str(read)]) as port:
            assert port == 41234
            wait_for("all was read", read.exists)
            raise ZeroDivisionError
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_forward_that_ends_by_itself_says_why() -> None:
    program = """
import sys
print("Forwarding from 127.0.0.1:41234 -> 15672", flush=True)
sys.exit("error: lost connection to pod")
"""
    ended = threading.Event()
    command = [sys.executable, "-c", program]
    with (
        pytest.raises(KubectlError, match="kubectl: lost connection to pod"),
        member_access.forwarded(command, ended=ended),
    ):
        assert ended.wait(60)


def test_a_forward_asks_for_the_local_port_that_is_wanted() -> None:
    kubectl = Kubectl("k")
    free = member_access.forward_command(kubectl, "shop", "orders-0", 15672)
    assert free[-2:] == ["pod/orders-0", ":15672"]
    assert member_access.forward_command(kubectl, "shop", "p", 1, 8080)[-1] == "8080:1"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('error: unable to forward port because pod is not running')", "not"),
        ("import signal; signal.pause()", "no port-forward within"),
    ],
)
def test_a_forward_that_does_not_come_says_why(program: str, said: str) -> None:
    before = set(threading.enumerate())
    with (
        pytest.raises(KubectlError, match=said),
        member_access.forwarded(
            [sys.executable, "-c", program], 0.5 if "exit" not in program else 60.0
        ),
    ):
        pytest.fail("there is no way")
    # Others of this run of tests may have readers of their own.
    begun = set(threading.enumerate()) - before
    assert not [item for item in begun if item.name.endswith("(_read)")]


# ---- figures ------------------------------------------------------------------------------------


def row(name: str, messages: int, enq: int, uid: int = 1) -> Body:
    counters = {"enq": enq, "dlv": 0, "ack": 0}
    return {
        "vhost": "/",
        "name": name,
        "uid": uid,
        "messages": messages,
        "type": "quorum",
        "state": "running",
        "counters": counters,
    }


def test_rates_are_differences_of_the_same_queue_and_the_fullest_come_first() -> None:
    before = Look(10.0, [row("a", 0, 100), row("b", 9, 50), row("again", 0, 90, uid=2)], [])
    now = Look(12.0, [row("a", 5, 120), row("b", 9, 40), row("again", 0, 7, uid=3)], [])
    found = figures.screen(before, now, rows=2)
    assert [(line.name, line.rates[0]) for line in found.queues] == [("b", 0.0), ("a", 10.0)]
    assert (found.queues_total, found.messages_total) == (3, 14)
    assert found.rates_total == (10.0, 0.0, 0.0)
    everything = figures.screen(before, now, rows=10**9)
    assert everything.queues[2].rates == (None, None, None)


def test_the_first_look_has_no_rates_and_rows_are_bounded() -> None:
    now = Look(1.0, [row(f"q{i}", i, 0) for i in range(1000)], [{"name": "n"}] * 99)
    found = figures.screen(None, now, rows=10**9)
    assert len(found.queues) == figures.ROWS_MAX
    assert len(found.members) == figures.MEMBERS_MAX
    assert found.rates_total == (None, None, None)


def test_members_are_shown_with_memory_and_alarms() -> None:
    members = [
        {
            "name": "orders-0",
            "running": True,
            "state": "maintenance",
            "alarms": ["memory"],
            "memory_used": 2**20 * 300,
            "memory_limit": 2**30,
        },
        {"name": "orders-1", "running": False},
    ]
    out = rich.console.Console(file=io.StringIO(), width=200)
    out.print(showing.top("orders", figures.screen(None, Look(0, [], members), 20), "gone"))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    for part in ("maintenance", "300 MiB of 1 GiB", "memory", "down", "gone"):
        assert part in shown
