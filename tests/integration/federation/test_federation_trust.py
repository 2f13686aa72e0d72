"""Links over TLS to a member whose authority no system knows: the definition says who may sign."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.authorities import Authority, Mounted
from tests.integration.federation_rig import Admin, admin, amqp, take
from tests.integration.members import Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)


@dataclass
class Rig:
    """An upstream with TLS on `port`, its certificate's volume, and a downstream."""

    upstream: Member
    downstream: Member
    admin: Admin
    port: int
    volume: Mounted
    old: Authority = field(default_factory=Authority)
    new: Authority = field(default_factory=Authority)

    def certify(self, authority: Authority) -> None:
        self.volume.swap_pair(authority.issue("localhost"), authority.certificate)

    def trust(self, name: str, *authorities: Authority) -> None:
        """Define upstream and policy of the exchange `name`."""
        definition: dict[str, Any] = {}
        if authorities:
            bundle = b"".join(item.certificate for item in authorities).decode()
            definition = {"ca_certificates": bundle}
        uri = f"amqps://guest:guest@localhost:{self.port}"
        self.admin.federate(name, uri, f"^{name}$", **definition)

    def refusal(self, name: str) -> bool:
        """Whether the link of `name` says that the upstream's certificate is not trusted."""
        rows = [row for row in self.admin.rows("links") if row["exchange"] == name]
        return any("certificate verify failed" in row["error"] for row in rows)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (port,) = free_ports(1)
    volume = Mounted(tmp_path / "tls")
    env = {
        "BROKERD_TLS_CERT_FILE": volume.path("tls.crt"),
        "BROKERD_TLS_KEY_FILE": volume.path("tls.key"),
    }
    made = Authority()
    volume.swap_pair(made.issue("localhost"), made.certificate)
    for name in ("up", "down"):
        (tmp_path / name).mkdir()
    with (
        cluster(tmp_path / "up", 1, amqps_ports=[port], **env) as (upstream,),
        cluster(tmp_path / "down", 1, BROKERD_CLUSTER_NAME="down") as (downstream,),
        admin(downstream) as client,
    ):
        yield Rig(upstream, downstream, client, port, volume, old=made)


def follow(rig: Rig, exchange: str) -> None:
    with amqp(rig.downstream.amqp_port) as channel:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange, "#")


def test_authorities_of_a_definition_are_trusted_and_rotate_without_costing_the_queue(
    rig: Rig,
) -> None:
    """R-FED-9, R-FX-17, SEC-5."""
    follow(rig, "stock")
    rig.trust("stock")
    eventually(lambda: rig.refusal("stock"), "an authority that nobody named is refused")
    rig.trust("stock", rig.old)
    before = rig.admin.wait_link("stock")

    # Both, before the upstream changes: the link that stands goes on as it is.  The supervisor has
    # seen it when the link that was asked for afterwards runs.
    rig.trust("stock", rig.old, rig.new)
    follow(rig, "later")
    rig.trust("later", rig.old)
    rig.admin.wait_link("later")
    after = rig.admin.wait_link("stock")
    assert after["local_connection"] == before["local_connection"]
    assert after["since_ms"] == before["since_ms"]

    # The upstream comes back with another authority's certificate; only one link trusts that.
    rig.certify(rig.new)
    rig.upstream.kill()
    rig.upstream.start()
    rig.upstream.wait_ready()
    rig.admin.wait_link("stock")
    eventually(lambda: rig.refusal("later"), "the new authority is unknown to the other link")
    with amqp(rig.upstream.amqp_port) as channel:
        for number in range(10):
            channel.basic_publish("later", "k", b"%d" % number)
    rig.trust("later", rig.new)
    rig.admin.wait_link("later")
    with amqp(rig.downstream.amqp_port) as channel:
        bodies = [take(channel, "later")[2] for _ in range(10)]
    assert bodies == [b"%d" % number for number in range(10)]


def test_certificates_that_cannot_be_read_are_the_links_error(rig: Rig) -> None:
    follow(rig, "stock")
    broken = rig.old.certificate.decode().replace("MII", "AAA", 1)
    uri = f"amqps://guest:guest@localhost:{rig.port}"
    rig.admin.federate("stock", uri, "^stock$", ca_certificates=broken)

    def said() -> bool:
        rows = rig.admin.rows("links")
        return any("certificates cannot be used" in row["error"] for row in rows)

    eventually(said, "the link says that its authorities cannot be read")
