"""Compat profiles (R-VER)."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from brokerd.core.profiles import (
    NAMES,
    Profile,
    UnknownProfile,
    configured,
    effective,
    profile,
)

#: Statement, switch, what the code does (default), what the document says.
DISAGREEMENTS = [
    ("C-5", "dlx_strip_cc_on_rk", False, True),
    ("C-6", "dlx_original_expiration_only_on_expired", False, True),
    ("C-9", "federation_reconnect_delay", 5, 1),
    ("C-12", "memory_zero_means", "block", "disable"),
    ("C-13", "memory_limit32", 2 << 30, 4 << 30),
    ("C-14", "memory_fraction_above_one", "cap", "allow"),
    ("C-16", "throttle_mode", "blocked", "channel_flow"),
]


def test_default_profile_is_brokerd() -> None:
    """rabbitmq-4.3 with our own choices."""
    default = profile()
    assert default == Profile()
    assert default.quorum_delivery_count_mode == "3.x"
    assert default.quorum_default_delivery_limit == 20
    assert default.memory_cgroup_aware
    assert default.federation_honour_alarms
    assert default.queues_transient_nonexclusive == "warn"


def test_rabbitmq_4_3_counts_failures() -> None:
    """R-DL-2."""
    assert profile("rabbitmq-4.3").quorum_delivery_count_mode == "4.3"


def test_older_profiles_differ_as_section_14_says() -> None:
    """R-VER-2, O-2, O-14."""
    old, middle = profile("rabbitmq-3.10"), profile("rabbitmq-3.13")
    assert (old.exchange_unknown_type_error, middle.exchange_unknown_type_error) == (503, 406)
    assert (old.headers_numeric_equality, middle.headers_numeric_equality) == ("loose", "strict")
    for each in (old, middle):
        assert each.quorum_default_delivery_limit is None
        assert each.memory_watermark_default == 0.4
        assert not each.federation_honour_alarms


def test_profiles_combine_from_left_to_right() -> None:
    """O-9."""
    both = profile("reference+mrg")
    assert both.queue_ae
    assert both.mrg_mark_on_exchange_ae
    assert both.throttle_mode == "channel_flow"


def test_a_single_switch_overrides_its_profile() -> None:
    """R-VER-2."""
    assert profile("rabbitmq-3.10", topic_max_hash_words=2).topic_max_hash_words == 2


@pytest.mark.parametrize(
    ("name", "overrides", "text"),
    [
        ("rabbitmq-9", {}, "unknown compat profile 'rabbitmq-9'; known: brokerd, rabbitmq-4.3"),
        ("brokerd", {"no_such": 1}, "unknown compat switch 'no_such'"),
        ("brokerd", {"name": "x"}, "unknown compat switch 'name'"),
        ("brokerd", {"qos_global": "maybe"}, "compat switch 'qos.global' is 'maybe'; allowed:"),
    ],
)
def test_unknown_names_and_values_are_refused(
    name: str, overrides: dict[str, object], text: str
) -> None:
    with pytest.raises(UnknownProfile, match=text.replace(".", r"\.")):
        profile(name, **overrides)


def test_all_named_profiles_can_be_made() -> None:
    assert [profile(name).name for name in NAMES] == list(NAMES)


def test_switches_of_a_configuration_come_by_name_and_as_text() -> None:
    """R-VER-2: dots or underscores; values typed (a file) or as text (the environment)."""
    chosen = configured(
        "rabbitmq-3.10",
        {
            "dlx.trust_client_x_death": "false",
            "QUORUM_DEFAULT_DELIVERY_LIMIT": "7",
            "max_message_size": "1 MiB",
            "memory.watermark_default": 0.5,
            "memory_log_style": 2009,
            "ae.warn_missing": True,
        },
    )
    assert not chosen.dlx_trust_client_x_death
    assert chosen.quorum_default_delivery_limit == 7
    assert chosen.max_message_size == 1024 * 1024
    assert chosen.memory_watermark_default == 0.5
    assert chosen.memory_log_style == "2009"
    assert chosen.ae_warn_missing
    assert configured("brokerd", {"quorum.default_delivery_limit": "none"}) == replace(
        Profile(), quorum_default_delivery_limit=None
    )


@pytest.mark.parametrize(
    ("switch", "value", "text"),
    [
        ("dlx.nothing", True, "unknown compat switch 'dlx.nothing'; known: ae.warn_missing, "),
        ("name", "x", "unknown compat switch 'name'"),
        ("dlx.emit_last_death", "maybe", "is 'maybe'; it must be true or false"),
        ("dlx.emit_last_death", 2, "is 2; it must be true or false"),
        ("topic.max_hash_words", "-1", "is '-1'; it must be a whole number, not negative"),
        ("topic.max_hash_words", True, "it must be a whole number"),
        ("topic.max_hash_words", "9" * 19, "it must be a whole number"),
        ("topic.max_hash_words", "none", "it must be a whole number"),
        ("quorum.default_delivery_limit", "few", "not negative, or none"),
        ("memory.watermark_default", "nan", "it must be a number"),
        ("memory.watermark_default", "x", "it must be a number"),
        ("memory.watermark_default", True, "it must be a number"),
        ("qos.global", True, "it must be text"),
        ("qos.global", "maybe", "compat switch 'qos.global' is 'maybe'; allowed: deny, allow"),
        ("exchange.unknown_type_error", "404", "allowed: 406, 503"),
    ],
)
def test_a_wrong_switch_of_a_configuration_is_refused(
    switch: str, value: object, text: str
) -> None:
    with pytest.raises(UnknownProfile) as refused:
        configured("brokerd", {switch: value})
    assert text in str(refused.value)


def test_every_switch_of_a_profile_can_be_shown_and_set_again() -> None:
    """R-VER-2, O-16: what `effective` shows is what `configured` understands."""
    for name in NAMES:
        chosen = profile(name)
        shown = effective(chosen)
        assert {"dlx.trust_client_x_death", "consumer_timeout.scope", "queue_ae"} <= shown.keys()
        assert {"mrg.orphan_scope", "mrg.reroute_overflow", "max_message_size"} <= shown.keys()
        again = configured("brokerd", {key: str(value) for key, value in shown.items()})
        assert replace(again, name=name) == chosen


def differences(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return the switches in which two profiles differ."""
    one, two = asdict(profile(first)), asdict(profile(second))
    return {name: (one[name], two[name]) for name in one if one[name] != two[name]}


def test_the_default_is_rabbitmq_4_3_but_for_choices_of_our_own() -> None:
    """R-VER-1, O-1, O-2: the other own choices hold in both."""
    assert differences("brokerd", "rabbitmq-4.3") == {
        "name": ("brokerd", "rabbitmq-4.3"),
        "ae_warn_missing": (True, False),
        "dlx_emit_last_death_consumer": (True, False),
        "replies_return_undelivered": (True, False),
        "quorum_delivery_count_mode": ("3.x", "4.3"),
        "quorum_holders_are_consumers": (False, True),
        "quorum_conditional_delete": (True, False),
        "delays_bounded": (True, False),
        "delivery_times": (True, False),
        "queues_stream_arguments": ("warn", "3.13"),
        "queues_master_locator": ("warn", "deny"),
        "queues_classic_consumer_timeout": (True, False),
        "queues_expiry_waits": (True, False),
        "quorum_declare_renews": (True, False),
        "memory_cgroup_aware": (True, False),
        "federation_confirm_loss": (True, False),
        "shovel_drop_unroutable": (False, True),
    }


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
