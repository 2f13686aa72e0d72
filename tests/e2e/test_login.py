"""The operator gets in whatever becomes of the admin Secret; its account is nobody's (ADR 21)."""

from __future__ import annotations

from typing import Any

import pika.exceptions
import pytest

from tests.e2e.namespace import READY_TIMEOUT_S, Namespace, Resource, resource, small_cluster, until
from tests.e2e.reach import Reach

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Shorter than the default, so that its end is seen; long enough for two looks at it.
OVERLAP = "90s"


def kept_cluster() -> Resource:
    body = small_cluster()
    body["spec"]["storage"]["retention"] = "Retain"
    body["spec"]["admin"] = {"passwordOverlap": OVERLAP}
    return body


def can_log_in(reach: Reach, password: str) -> bool:
    """By AMQP; waits where nobody answers."""
    reach.password = password

    def answered() -> str | None:
        try:
            reach.connect_once().close()
        except pika.exceptions.ProbableAuthenticationError:
            return "no"
        except (pika.exceptions.AMQPError, OSError):
            return None
        return "yes"

    return until(answered, "an answer to a login") == "yes"


def is_synced(space: Namespace) -> dict[str, Any]:
    return space.wait_condition("brokercluster", "tiny", "Synced", "CredentialsSynced")


def look_now(space: Namespace, mark: str) -> None:
    space.kubectl(
        *("annotate", "brokercluster", "tiny", f"brokerd.io/reconcile-at={mark}", "--overwrite")
    )


def test_login_outlives_the_cluster_and_its_secret(space: Namespace) -> None:
    space.apply(kept_cluster())
    space.apply(resource("Queue", "jobs", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("brokercluster/tiny", "queue/jobs")
    is_synced(space)
    first = space.secret("tiny-admin")["password"].decode()
    volume = space.get("pvc", "data-tiny-0")["metadata"]["uid"]

    # The account is nobody's.
    space.apply(resource("User", "admin", brokerRef={"name": "tiny"}, adoptionPolicy="Always"))
    refused = space.wait_condition("user", "admin", "Reserved")
    assert refused["status"] == "False"
    assert "operator's own account" in refused["message"]
    space.delete("user", "admin")
    reach = Reach(space, "tiny")
    assert can_log_in(reach, first)
    reach.close()

    # Deleted and made anew over the same volume.
    space.delete("queue", "jobs")
    space.delete("brokercluster", "tiny")
    until(lambda: space.find("pod", "tiny-0") is None, "the member's pod is gone")
    space.apply(kept_cluster())
    space.wait_ready("brokercluster/tiny", timeout_s=READY_TIMEOUT_S)
    is_synced(space)
    assert space.get("pvc", "data-tiny-0")["metadata"]["uid"] == volume
    assert space.secret("tiny-admin")["password"].decode() == first
    reach = Reach(space, "tiny")
    assert can_log_in(reach, first)

    # Its Secret deleted: a new password, the old one for a while. All namespaces are watched here,
    # so the operator looks at Secrets now and then, or when it is told to.
    space.delete("secret", "tiny-admin")
    look_now(space, "1")
    until(lambda: space.find("secret", "tiny-admin"), "the Secret is made anew")
    second = space.secret("tiny-admin")["password"].decode()
    assert second != first
    until(lambda: can_log_in(reach, second), "the new password is the broker's")
    assert can_log_in(reach, first), "the old one goes on for a while"
    until(lambda: not can_log_in(reach, first), "the old password has ended", 300.0)
    assert can_log_in(reach, second)
    assert space.events("CredentialsSet", "tiny")
    reach.close()

    # Over kept volumes with a Secret that was lost meanwhile: nobody knows the password any more.
    space.delete("brokercluster", "tiny")
    until(lambda: space.find("pod", "tiny-0") is None, "the member's pod is gone")
    space.delete("secret", "tiny-admin")
    space.apply(kept_cluster())
    space.wait_ready("brokercluster/tiny", timeout_s=READY_TIMEOUT_S)
    is_synced(space)
    third = space.secret("tiny-admin")["password"].decode()
    reach = Reach(space, "tiny")
    until(lambda: can_log_in(reach, third), "the third password is the broker's")
    space.apply(resource("Queue", "more", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("queue/more")
    reach.close()
