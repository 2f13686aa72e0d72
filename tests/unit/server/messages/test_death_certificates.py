"""x-last-death-consumer as clients read it, from certificates of the queue machine (ADR 88)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp import properties
from brokerd.amqp.properties import BasicProperties
from brokerd.core.message import Content
from brokerd.core.profiles import profile
from brokerd.core.queue import certificates
from brokerd.core.queue.certificates import Certificate
from brokerd.core.queue.effects import Run
from brokerd.server.messages.dead_letter_headers import record_death
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages import fakes

HEADER = "x-last-death-consumer"
WORKER = certificates.client("billing-7", "pika", "1.3.2")
WHOLE = Certificate(WORKER, "c", 340, "rejected", "no such customer")


def headers_after(
    certificate: Certificate | None,
    reason: str = "rejected",
    header: bytes = b"\0\0",
    version: str = "brokerd",
) -> dict[str, Any]:
    """Return the headers of a message that was handed out twice before, after its death."""
    catalog = CatalogDriver(profile(version))
    queue = catalog.queue("w")
    routing = fakes.Routing(catalog)
    content: Content = (("", "w"), header, b"body", b"")
    run = Run(0, 1, 1, 0, 2, 1)
    dead, _ = record_death(
        routing,  # type: ignore[arg-type]
        queue,
        content,
        reason=reason,
        time_s=1,
        target=("dlx", None),
        run=run,
        certificate=certificate,
    )
    return dict(properties.headers(dead[1]))


def test_it_is_a_table_beside_x_death() -> None:
    """ADR 88"""
    found = headers_after(WHOLE)
    assert found[HEADER] == {
        "connection": "billing-7",
        "client": "pika 1.3.2",
        "consumer-tag": "c",
        "held-for": 340,
        "attempts": 3,
        "outcome": "rejected",
        "reason": "no such customer",
    }
    assert not {"client", "reason-given", "consumer"} & found["x-death"][0].keys()
    assert list(found) == sorted(found)


def test_what_is_not_known_is_left_out_and_what_came_back_is_counted_already() -> None:
    """ADR 88"""
    found = headers_after(Certificate(None, "", None, "lost", ""), "delivery_limit")
    assert found[HEADER] == {"consumer-tag": "", "attempts": 2, "outcome": "lost"}


FORGED = BasicProperties(headers={HEADER: {"client": "another"}}).encode()


@pytest.mark.parametrize("certificate", [None, WHOLE])
def test_what_a_client_or_an_earlier_death_has_set_does_not_stay(
    certificate: Certificate | None,
) -> None:
    """ADR 88, R-DLX-25"""
    found = headers_after(certificate, "rejected" if certificate else "expired", FORGED)
    assert found.get(HEADER, {}).get("client") == (certificate and "pika 1.3.2")


@pytest.mark.parametrize("version", ["rabbitmq-4.3", "rabbitmq-3.13", "rabbitmq-3.10"])
def test_rabbitmqs_profiles_have_none_and_leave_a_clients_alone(version: str) -> None:
    """ADR 88, R-DLX-15"""
    assert HEADER not in headers_after(WHOLE, version=version)
    assert headers_after(None, header=FORGED, version=version)[HEADER] == {"client": "another"}
