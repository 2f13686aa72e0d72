"""Shovels with TLS at either end: the URI names the authority's file, or the definition has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.federation.test_federation_trust import Rig, pytestmark, rig
from tests.integration.federation_rig import amqp, take
from tests.integration.members import eventually

__all__ = ["pytestmark", "rig"]


def shovel(rig: Rig, name: str, source: str, destination: str, **more: str) -> None:
    """Set a shovel from the queue `name` to `name`-too."""
    value = {"src-uri": source, "src-queue": name, "reconnect-delay": 0.1}
    value |= {"dest-uri": destination, "dest-queue": f"{name}-too"}
    value |= {key.replace("_", "-"): item for key, item in more.items()}
    rig.admin.put("parameter", f"shovel/{name}", {"value": value})


def row(rig: Rig, name: str) -> dict[str, Any]:
    return next((row for row in rig.admin.rows("shovels") if row["upstream"] == name), {})


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "definition"])
def test_either_end_is_verified_by_its_own_authority(
    rig: Rig, tmp_path: Path, is_file: bool
) -> None:
    """R-FED-9: out and back again; without the authority each end is refused."""
    out, back = f"out-{is_file}", f"back-{is_file}"
    plain = f"amqps://guest:guest@localhost:{rig.port}"
    authority = tmp_path / "ca.pem"
    authority.write_bytes(rig.old.certificate)
    with amqp(rig.downstream.amqp_port) as near, amqp(rig.upstream.amqp_port) as far:
        near.queue_declare(out, durable=True)
        far.queue_declare(back, durable=True)
        shovel(rig, out, "amqp://", plain)
        shovel(rig, back, plain, "amqp://")
        for name in (out, back):
            eventually(
                lambda name=name: "certificate verify failed" in row(rig, name).get("error", ""),
                f"{name} is refused",
            )
        near.queue_declare(f"{back}-too", durable=True)
        far.queue_declare(f"{out}-too", durable=True)
        near.basic_publish("", out, b"there")
        far.basic_publish("", back, b"here")
        if is_file:
            trusted = f"{plain}?cacertfile={authority}"
            shovel(rig, out, "amqp://", trusted)
            shovel(rig, back, trusted, "amqp://")
        else:
            text = rig.old.certificate.decode()
            shovel(rig, out, "amqp://", plain, dest_ca_certificates=text)
            shovel(rig, back, plain, "amqp://", src_ca_certificates=text)
        assert take(far, f"{out}-too")[2] == b"there"
        assert take(near, f"{back}-too")[2] == b"here"
    shown = [row(rig, out)["destination"], row(rig, back)["uri"]]
    assert shown == [plain.replace("guest:guest@", "")] * 2
