"""What the profiles promise as a whole (README of the specification, sections 14.1 to 14.3)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from brokerd.core.profiles import profile


def differences(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return the switches in which two profiles differ."""
    one, two = asdict(profile(first)), asdict(profile(second))
    return {name: (one[name], two[name]) for name in one if one[name] != two[name]}


def test_the_default_is_rabbitmq_4_3_but_for_two_choices_of_our_own() -> None:
    """R-VER-1, O-1, O-2: the other own choices hold in both."""
    assert differences("brokerd", "rabbitmq-4.3") == {
        "name": ("brokerd", "rabbitmq-4.3"),
        "quorum_delivery_count_mode": ("3.x", "4.3"),
        "memory_cgroup_aware": (True, False),
    }


#: Statement of section 14.3, switch, what the code does (default), what the document says.
DISAGREEMENTS = [
    ("C-5", "dlx_strip_cc_on_rk", False, True),
    ("C-6", "dlx_original_expiration_only_on_expired", False, True),
    ("C-9", "federation_reconnect_delay", 5, 1),
    ("C-12", "memory_zero_means", "block", "disable"),
    ("C-13", "memory_limit32", 2 << 30, 4 << 30),
    ("C-14", "memory_fraction_above_one", "cap", "allow"),
    ("C-16", "throttle_mode", "blocked", "channel_flow"),
]


@pytest.mark.parametrize(("statement", "switch", "code", "document"), DISAGREEMENTS)
def test_code_decides_and_the_reference_profile_keeps_the_document(
    statement: str, switch: str, code: object, document: object
) -> None:
    """R-VER-3."""
    assert getattr(profile(), switch) == code, statement
    assert getattr(profile("rabbitmq-4.3"), switch) == code, statement
    assert getattr(profile("reference"), switch) == document, statement


def test_queue_alternates_are_off_but_in_the_profile_that_adds_them() -> None:
    """R-VER-2, R-VER-3, C-3: mrg only adds."""
    assert set(differences("brokerd", "mrg")) == {"name", "queue_ae", "mrg_mark_on_exchange_ae"}
    assert set(differences("reference", "reference+mrg")) == set(differences("brokerd", "mrg"))
