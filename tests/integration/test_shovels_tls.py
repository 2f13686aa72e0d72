"""Shovels with TLS at either end: the URI names the authority's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.federation_rig import amqp, take
from tests.integration.members import eventually
from tests.integration.test_federation_trust import Rig, pytestmark, rig

__all__ = ["pytestmark", "rig"]


def shovel(rig: Rig, name: str, source: str, destination: str) -> None:
    """Set a shovel from the queue `name` to `name`-too."""
    value = {"src-uri": source, "src-queue": name, "reconnect-delay": 0.1}
    value |= {"dest-uri": destination, "dest-queue": f"{name}-too"}
    rig.admin.put("parameter", f"shovel/{name}", {"value": value})


def row(rig: Rig, name: str) -> dict[str, Any]:
    return next((row for row in rig.admin.rows("shovels") if row["upstream"] == name), {})


def test_either_end_is_verified_by_the_uris_authority(rig: Rig, tmp_path: Path) -> None:
    """R-FED-9: out and back again; without the authority's file each end is refused."""
    plain = f"amqps://guest:guest@localhost:{rig.port}"
    authority = tmp_path / "ca.pem"
    authority.write_bytes(rig.old.certificate)
    trusted = f"{plain}?cacertfile={authority}"
    with amqp(rig.downstream.amqp_port) as near, amqp(rig.upstream.amqp_port) as far:
        near.queue_declare("out", durable=True)
        far.queue_declare("back", durable=True)
        shovel(rig, "out", "amqp://", plain)
        shovel(rig, "back", plain, "amqp://")
        for name in ("out", "back"):
            eventually(
                lambda name=name: "certificate verify failed" in row(rig, name).get("error", ""),
                f"{name} is refused",
            )
        near.queue_declare("back-too", durable=True)
        far.queue_declare("out-too", durable=True)
        near.basic_publish("", "out", b"there")
        far.basic_publish("", "back", b"here")
        shovel(rig, "out", "amqp://", trusted)
        shovel(rig, "back", trusted, "amqp://")
        assert take(far, "out-too")[2] == b"there"
        assert take(near, "back-too")[2] == b"here"
    shown = [row(rig, "out")["destination"], row(rig, "back")["uri"]]
    assert shown == [plain.replace("guest:guest@", "")] * 2
