"""Compat profiles (R-VER, sections 14.2 and 5)."""

from __future__ import annotations

import pytest

from brokerd.core.profiles import NAMES, Profile, UnknownProfile, profile


def test_default_profile_is_brokerd() -> None:
    """Section 5: rabbitmq-4.3 with our own choices."""
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
        ("brokerd", {"qos_global": "maybe"}, "compat switch 'qos_global' is 'maybe'; allowed:"),
    ],
)
def test_unknown_names_and_values_are_refused(
    name: str, overrides: dict[str, object], text: str
) -> None:
    with pytest.raises(UnknownProfile, match=text.replace(".", r"\.")):
        profile(name, **overrides)


def test_all_named_profiles_can_be_made() -> None:
    assert [profile(name).name for name in NAMES] == list(NAMES)
