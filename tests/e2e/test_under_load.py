"""What happens to a cluster of three members while publishers wait for confirms.

One cluster for all scenarios; each begins and ends with all members ready. Nothing that was
confirmed is lost, and no publisher is without a confirm for more than BOUND_S. How long it was is
printed at the end of the session.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster_fixtures import CACHE, IMAGES, Kubernetes
from tests.e2e.image_versions import relabel
from tests.e2e.namespace import Namespace, Resource, resource, until
from tests.e2e.reach import AMQPS, Reach
from tests.e2e.traffic import BOUND_S, STEADY, Habits, Load, load

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

NAME = "busy"
QUEUE = "jobs"
MEMBERS = 3
#: Messages before and after what happens.
AROUND = 50
#: One member that stops, starts and catches up.
MEMBER_S = 120.0

LATER_IMAGE = "localhost/brokerd:later"
LATER = "99.0.0"

Record = Callable[[str, object], None]

#: Eats the memory of its container in bites, each smaller than the broker, so that the kernel's
#: killer, which takes the largest process, takes the broker as if it had eaten all itself.
EAT = """
import os, signal
while True:
    if not os.fork():
        bite = b"x" * (40 << 20)
        signal.pause()
"""


def cluster() -> Resource:
    return resource(
        "BrokerCluster",
        NAME,
        replicas=MEMBERS,
        storage={"size": "1Gi", "retention": "Delete", "className": "expandable"},
        resources={"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        telemetry={"enabled": False},
    )


@pytest.fixture(scope="module")
def busy(make_namespace: Callable[[str], Namespace]) -> Namespace:
    space = make_namespace(NAME)
    space.apply(cluster())
    space.apply(resource("Queue", QUEUE, brokerRef={"name": NAME}, type="quorum"))
    wait_whole(space)
    space.wait_ready(f"queue/{QUEUE}")
    return space


@pytest.fixture(scope="module")
def later_image(kube_nodes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> str:
    archive = CACHE / "images" / "broker.tar"
    if not archive.exists():
        pytest.skip("the images of this cluster were not built here")
    made = tmp_path_factory.mktemp("images") / "later.tar"
    relabel(archive, made, LATER_IMAGE, LATER)
    kube_nodes.load(made)
    made.unlink()
    return LATER_IMAGE


@pytest.fixture
def reach(busy: Namespace) -> Iterator[Reach]:
    found = Reach(busy, NAME)
    yield found
    found.close()


def wait_whole(space: Namespace) -> None:
    space.kubectl(
        *("wait", "--for=condition=AllReplicasReady", f"brokercluster/{NAME}", "--timeout=300s"),
        timeout_s=310,
    )
    space.wait_ready(f"brokercluster/{NAME}")


@contextmanager
def under_load(reach: Reach, record: Record, habits: Habits = STEADY) -> Iterator[Load]:
    """Publish before, during and after; then judge."""
    with load(reach, "", QUEUE, QUEUE, MEMBERS, habits) as running:
        running.wait_confirmed(AROUND)
        yield running
        running.wait_confirmed(AROUND)
        notes = running.stop()
    for name, value in notes.figures().items():
        record(name, value)
    assert not notes.lost
    assert notes.longest_gap_s <= BOUND_S
    wait_whole(reach.space)


def pod_ids(space: Namespace) -> dict[str, str]:
    found = [pod["metadata"] for pod in space.items("pods", f"app.kubernetes.io/instance={NAME}")]
    return {item["name"]: item["uid"] for item in found}


def restarts(space: Namespace) -> dict[str, int]:
    """How often the members' containers were started again."""
    return {
        pod["metadata"]["name"]: container["restartCount"]
        for pod in space.items("pods", f"app.kubernetes.io/instance={NAME}")
        for container in pod["status"].get("containerStatuses", ())
    }


def test_member_that_the_kernel_kills_for_memory(
    busy: Namespace, reach: Reach, record_property: Record
) -> None:
    before, members = restarts(busy), pod_ids(busy)
    # Its loss is felt most.
    victim = reach.leader(QUEUE)
    with under_load(reach, record_property):
        busy.kubectl("exec", victim, "--", "python", "-c", EAT, check=False)
        until(lambda: restarts(busy)[victim] > before[victim], "the member is killed", MEMBER_S)
        busy.kubectl("wait", "--for=condition=Ready", f"pod/{victim}", "--timeout=100s")
    killed = container(busy, victim)["lastState"]["terminated"]
    assert killed["reason"] == "OOMKilled", killed
    assert pod_ids(busy) == members
    # Nobody has to look at pods to learn of it.
    told = until(lambda: busy.events("MemberRestarted", NAME), "an Event of the BrokerCluster")
    assert victim in told[0]["message"]
    assert "OOMKilled" in told[0]["message"]


def container(space: Namespace, member: str) -> Resource:
    [found] = space.get("pod", member)["status"]["containerStatuses"]
    assert isinstance(found, dict)
    return found


def test_passwords_change(busy: Namespace, reach: Reach, record_property: Record) -> None:
    """The administrator's, whose old one is taken for a while, and a user's, whose is not."""
    broker = {"name": NAME}
    busy.apply(resource("User", "clerk", brokerRef=broker))
    rights = {"user": "clerk", "configure": "", "write": ".*", "read": ".*"}
    busy.apply(resource("Permission", "clerk", brokerRef=broker, vhost="/", **rights))
    busy.wait_applied("user", "clerk")
    busy.wait_applied("permission", "clerk")
    clerk = Reach(busy, NAME, "clerk-credentials")
    before, old = restarts(busy), (reach.password, clerk.password)
    habits = Habits(messages_per_connection=20, second=clerk)
    with under_load(reach, record_property, habits) as running:
        for kind, name, secret in (
            ("brokercluster", NAME, f"{NAME}-admin"),
            ("user", "clerk", "clerk-credentials"),
        ):
            busy.kubectl("delete", "secret", secret)
            look_now(busy, kind, name)
            wait_made(busy, secret)
        running.wait_confirmed(4 * AROUND)
    assert clerk.password != old[1]
    assert reach.password != old[0]
    assert restarts(busy) == before
    clerk.close()
    busy.delete("permission", "clerk")
    busy.delete("user", "clerk")


def look_now(space: Namespace, kind: str, name: str) -> None:
    """All namespaces are watched here; Secrets are then looked at now and then, or when asked."""
    mark = f"brokerd.io/reconcile-at={time.monotonic_ns()}"
    space.kubectl("annotate", kind, name, mark, "--overwrite")


def wait_made(space: Namespace, secret: str) -> None:
    until(lambda: space.find("secret", secret), f"{secret} is made anew")


def test_certificates_change(busy: Namespace, reach: Reach, record_property: Record) -> None:
    """Those for clients and those of the members, which load them without a restart."""
    members, before = pod_ids(busy), restarts(busy)
    old = {name: served(reach, name) for name in members}
    habits = Habits(is_tls=True, messages_per_connection=20)
    with under_load(reach, record_property, habits) as running:
        busy.kubectl("delete", "secret", f"{NAME}-tls", f"{NAME}-peer-tls")
        look_now(busy, "brokercluster", NAME)
        wait_made(busy, f"{NAME}-tls")
        wait_made(busy, f"{NAME}-peer-tls")
        for name in members:
            # Else the kubelet looks when it comes by, once a minute or so.
            busy.kubectl("annotate", "pod", name, "brokerd.io/e2e=look", "--overwrite")
        until(
            lambda: all(served(reach, name) != old[name] for name in members),
            "all members serve the new certificate",
        )
        running.wait_confirmed(4 * AROUND)
    assert pod_ids(busy) == members
    assert restarts(busy) == before


def served(reach: Reach, member: str) -> str:
    """The certificate that a member shows to a client."""
    address = reach.address(AMQPS, int(member.rpartition("-")[2]))
    return ssl.get_server_certificate(address, timeout=10)


def test_image_that_does_not_start_and_one_that_does(
    busy: Namespace, reach: Reach, later_image: str, record_property: Record
) -> None:
    """One at a time; none after one that does not come back; then on, but not back unasked."""
    before = pod_ids(busy)
    last = f"{NAME}-{MEMBERS - 1}"
    with under_load(reach, record_property) as running:
        try:
            spec = {"image": "localhost/brokerd:missing", "progressDeadlineSeconds": 10}
            busy.patch("brokercluster", NAME, spec)
            stalled = busy.wait_condition(
                "brokercluster", NAME, "MemberNotReady", timeout_s=MEMBER_S
            )
            assert last in stalled["message"]
            # It is late from the moment on in which it is told to end.
            until(lambda: pod_ids(busy).get(last, before[last]) != before[last], "its pod is new")
            running.wait_confirmed(AROUND)
            now = pod_ids(busy)
            assert {name for name in before if now.get(name) != before[name]} == {last}
        finally:
            # What comes after finds a cluster that is whole.
            spec = {"image": later_image, "progressDeadlineSeconds": 600}
            busy.patch("brokercluster", NAME, spec)
        wait_rolled(busy, later_image)
        assert busy.get("brokercluster", NAME)["status"]["version"] == LATER

        # What the operator would choose is older here; without consent nobody gets it.
        busy.patch("brokercluster", NAME, {"image": None, "upgradePolicy": "OnApproval"})
        found = busy.wait_condition("brokercluster", NAME, "WaitingForApproval", "UpgradePending")
        assert IMAGES["broker"] in found["message"]
        assert images_of(busy) == {later_image}


def images_of(space: Namespace) -> set[str]:
    pods = space.items("pods", f"app.kubernetes.io/instance={NAME}")
    return {item["image"] for pod in pods for item in pod["spec"]["containers"]}


def wait_rolled(space: Namespace, image: str) -> None:
    """Until all members run an image; at no time are two of them away."""

    def check() -> bool:
        count = space.get("statefulset", NAME)["status"].get("readyReplicas", 0)
        assert count >= MEMBERS - 1, f"{count} members are ready"
        return images_of(space) == {image} and len(pod_ids(space)) == MEMBERS

    until(check, f"all members run {image}", MEMBERS * MEMBER_S)
    space.wait_condition("brokercluster", NAME, "UpToDate", "UpgradePending", MEMBER_S)
    wait_whole(space)


def test_volume_that_is_lost(busy: Namespace, reach: Reach, record_property: Record) -> None:
    victim = reach.leader(QUEUE)
    claim = f"data-{victim}"
    volume = busy.get("pvc", claim)["spec"]["volumeName"]
    with under_load(reach, record_property):
        busy.kubectl("delete", "pvc", claim, "--wait=false")
        busy.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        until(
            lambda: (
                (busy.find("pvc", claim) or {"spec": {}})["spec"].get("volumeName")
                not in (None, volume)
            ),
            "there is a new volume",
        )
        busy.kubectl("wait", "--for=condition=Ready", f"pod/{victim}", "--timeout=100s")
        until(lambda: victim in reach.voters(QUEUE), "the member is refilled", MEMBER_S)


def test_volumes_grow(busy: Namespace, reach: Reach, record_property: Record) -> None:
    members = pod_ids(busy)
    before = busy.get("statefulset", NAME)["metadata"]["uid"]
    with under_load(reach, record_property):
        busy.patch("brokercluster", NAME, {"storage": {"size": "2Gi"}})
        until(
            lambda: [item["size"] for item in volumes(busy)] == ["2Gi"] * MEMBERS,
            "all volumes have grown",
        )
        until(
            lambda: (
                (busy.find("statefulset", NAME) or {"metadata": {"uid": before}})["metadata"]["uid"]
                != before
            ),
            "further members get the new size",
        )
        busy.wait_condition("brokercluster", NAME, "Available", timeout_s=MEMBER_S)
    assert pod_ids(busy) == members


def volumes(space: Namespace) -> list[Resource]:
    found: list[Resource] = space.get("brokercluster", NAME)["status"].get("volumes", [])
    return found
