"""Keys of secrets at rest: what they seal, open and refuse, and where a member finds them."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from brokerd.config import BrokerConfig, ClusterConfig, NodeConfig, SecretsConfig
from brokerd.federation.upstream import SEALED
from brokerd.server.catalog import keyring
from brokerd.server.catalog.keyring import Keyring, SealError

OLD, NEW = bytes(range(32)), bytes(reversed(range(32)))


def member(folder: Path, key_file: str = "", secret: str = "", members: str = "") -> BrokerConfig:
    return BrokerConfig(
        node=NodeConfig(data_dir=str(folder)),
        cluster=ClusterConfig(secret=secret, members=members),
        secrets=SecretsConfig(key_file=key_file),
    )


def keys(folder: Path, *raw: bytes) -> str:
    file = folder / "keys"
    file.write_text("# newest first\n\n" + "\n".join(base64.b64encode(key).decode() for key in raw))
    return str(file)


def test_the_first_key_seals_and_all_open() -> None:
    """SEC-20: so keys are rotated: the new one first, the old one as long as it is needed."""
    old, both, new = Keyring([OLD]), Keyring([NEW, OLD]), Keyring([NEW])
    first = old.seal("secret", "a")
    assert both.open(first, "a") == "secret"
    assert not both.is_current(first)
    second = both.seal("secret", "a")
    assert both.is_current(second)
    assert new.open(second, "a") == "secret"
    with pytest.raises(SealError, match="which this member does not have"):
        new.open(first, "a")


def test_what_is_sealed_is_bound_to_its_object_and_cannot_be_changed() -> None:
    ring = Keyring([OLD])
    sealed = ring.seal("sec\udcffret", "a")
    assert sealed.startswith(SEALED)
    assert "sec" not in sealed
    assert ring.seal("sec\udcffret", "a") != sealed
    assert ring.open(sealed, "a") == "sec\udcffret"
    key = sealed.removeprefix(SEALED).partition(":")[0]
    for about, text in (
        ("b", sealed),
        ("a", sealed[:-4] + "AAA="),
        ("a", f"{SEALED}{key}:"),
        ("a", f"{SEALED}{key}:A"),
        ("a", f"{SEALED}{key}:\u00e4"),
        ("a", f"{SEALED}{key}"),
        ("a", SEALED),
    ):
        with pytest.raises(SealError):
            ring.open(text, about)


def test_without_keys_nothing_is_sealed() -> None:
    assert not Keyring([]).is_on
    assert not Keyring([]).is_current(SEALED + ":")


def test_a_member_reads_its_keys_from_a_file(tmp_path: Path) -> None:
    ring = keyring.load(member(tmp_path, keys(tmp_path, NEW, OLD), "shared"))
    assert ring.open(Keyring([OLD]).seal("x", ""), "") == "x"
    assert Keyring([NEW]).open(ring.seal("x", ""), "") == "x"
    # What was sealed before there was a file.
    assert ring.open(keyring.load(member(tmp_path, "", "shared")).seal("x", ""), "") == "x"
    assert not (tmp_path / keyring.OWN_FILE).exists()


def test_members_with_one_secret_have_one_key(tmp_path: Path) -> None:
    first, second = (keyring.load(member(tmp_path / name, "", "shared")) for name in "ab")
    assert second.open(first.seal("x", ""), "") == "x"
    other = keyring.load(member(tmp_path, "", "another"))
    with pytest.raises(SealError):
        other.open(first.seal("x", ""), "")


def test_a_lone_member_makes_a_key_of_its_own(tmp_path: Path) -> None:
    sealed = keyring.load(member(tmp_path)).seal("x", "")
    file = tmp_path / keyring.OWN_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert keyring.load(member(tmp_path)).open(sealed, "") == "x"
    # Also once it is no lone member any more.
    assert keyring.load(member(tmp_path, "", "shared")).open(sealed, "") == "x"


@pytest.mark.parametrize(
    "text", ["", "# nothing", "c2hvcnQ=", "nonsense!", "\u00e4", "A" * 70_000, "\n".join("ab")]
)
def test_a_file_that_is_none_seals_nothing_under_another_key(tmp_path: Path, text: str) -> None:
    """The member goes on; it does not store a password in another way than was asked for."""
    file = tmp_path / "keys"
    file.write_text(text)
    for ring in (
        keyring.load(member(tmp_path, str(file), "shared")),
        keyring.load(member(tmp_path, str(tmp_path / "none"))),
    ):
        assert ring.is_on
        with pytest.raises(SealError, match="cannot be used") as refused:
            ring.seal("x", "")
        assert "nonsense" not in str(refused.value)
    # What the cluster's secret sealed before can still be read.
    sealed = keyring.load(member(tmp_path, "", "shared")).seal("x", "")
    assert keyring.load(member(tmp_path, str(file), "shared")).open(sealed, "") == "x"


def test_a_key_that_only_one_member_has_seals_nothing_for_the_others(tmp_path: Path) -> None:
    """Members that know each other by certificates alone, and have no file of keys."""
    sealed = keyring.load(member(tmp_path)).seal("x", "")
    ring = keyring.load(member(tmp_path, members="a=h:1,b=h:2"))
    assert not ring.is_on
    assert ring.open(sealed, "") == "x"
    keyring.load(member(tmp_path / "other", members="a=h:1,b=h:2"))
    assert not (tmp_path / "other").exists()


def test_a_damaged_key_of_its_own_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / keyring.OWN_FILE).write_text("damaged")
    ring = keyring.load(member(tmp_path))
    with pytest.raises(SealError, match="cannot be used"):
        ring.seal("x", "")
    assert keyring.load(member(tmp_path, "", "shared")).seal("x", "")
