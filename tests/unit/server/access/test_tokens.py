"""Tokens against a test issuer: signatures, keys that come and go, and hostile ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from brokerd.config import ConfigError, KubernetesConfig, OAuthConfig, load
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import User
from brokerd.core.catalog.claims import Problem
from brokerd.core.catalog.identity import Identity
from brokerd.server.access import auth, login_records, token_keys, tokens
from brokerd.server.access.login_records import Client
from brokerd.server.access.tokens import Tokens
from tests.tokens import RESOURCE, TestIssuer
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.access.fakes import Trusting, Users, Variables, authenticator

HERE = Client("amqp", "127.0.0.1", "127.0.0.1:1 -> 127.0.0.1:2")
USERS: Any = Users(User("user", "", "till", {"password_hash": "h", "tags": ["monitoring"]}))


def put_user(driver: CatalogDriver, name: str, *tags: str) -> None:
    spec = {"password_hash": "h", "tags": list(tags)}
    assert driver.do(catalog_commands.put("user", "", name, spec, cause="admin"))["code"] == "OK"


def clock_ms() -> int:
    return int(time.time() * 1000)


def taken(view: Any = USERS, kubernetes: Any = None, **settings: Any) -> Tokens:
    """Return tokens as configured."""
    oauth2 = OAuthConfig(resource_server_id=RESOURCE, **settings)
    made = tokens.of_config(oauth2, kubernetes or KubernetesConfig(), view, clock_ms)
    assert made is not None
    return made


@pytest.fixture
async def issuer() -> AsyncIterator[TestIssuer]:
    made = TestIssuer()
    with made.serving():
        yield made


def at(issuer: TestIssuer, **settings: Any) -> Tokens:
    return taken(jwks_url=f"{issuer.url}/keys", **settings)


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


async def test_a_token_is_taken_for_who_it_speaks_of(issuer: TestIssuer) -> None:
    found = await at(issuer).identify(issuer.token("read:*/*", "tag:management"))
    assert isinstance(found, Identity)
    assert (found.user, found.tags) == ("till", ("management",))
    assert found.scopes is not None
    assert len(found.scopes.all) == 1


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
async def test_keys_of_other_kinds(algorithm: str) -> None:
    issuer = TestIssuer(algorithm)
    with issuer.serving():
        assert isinstance(await at(issuer).identify(issuer.token()), Identity)


async def test_the_discovery_document_says_where_the_keys_are(issuer: TestIssuer) -> None:
    known = taken(issuer=issuer.url)
    assert isinstance(await known.identify(issuer.token()), Identity)
    assert await known.identify(issuer.token(iss="https://other")) is Problem.ISSUER


async def test_keys_in_files_need_no_issuer(tmp_path: Path) -> None:
    issuer = TestIssuer("ES256")
    path = tmp_path / "k1.pem"
    path.write_bytes(issuer.pem())
    known = taken(signing_keys={"k1": str(path)})
    assert isinstance(await known.identify(issuer.token()), Identity)
    issuer.add_key("k2")
    assert await known.identify(issuer.token(key_id="k2")) is Problem.KEY
    # One key: a token need not name it.
    unnamed = jwt.encode(
        {"exp": int(time.time()) + 60, "aud": RESOURCE, "sub": "u"}, issuer.keys["k1"][1], "ES256"
    )
    assert isinstance(await known.identify(unnamed), Identity)


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n"])
def test_a_file_without_a_key_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.pem"
    path.write_text(text)
    for name in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=str(name)):
            taken(signing_keys={"k": str(name)})
    with pytest.raises(ConfigError, match="cannot use /dev/zero: it holds more than"):
        taken(signing_keys={"k": "/dev/zero"})
    with pytest.raises(ConfigError, match="authority"):
        taken(jwks_url="https://127.0.0.1:1/", cacertfile=str(tmp_path / "missing"))


async def test_a_new_key_is_found_and_the_issuer_is_asked_at_a_bounded_rate(
    issuer: TestIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = at(issuer)
    assert isinstance(await known.identify(issuer.token()), Identity)
    assert issuer.asked == 1
    issuer.add_key("k2")
    # The issuer has been asked just now.
    assert await known.identify(issuer.token(key_id="k2")) is Problem.KEY
    assert issuer.asked == 1
    monkeypatch.setattr(token_keys, "REFRESH_S_MIN", 0.0)
    many = await asyncio.gather(*(known.identify(issuer.token(key_id="k2")) for _ in range(50)))
    assert all(isinstance(found, Identity) for found in many)
    assert issuer.asked == 2


async def test_keys_are_kept_while_the_issuer_is_away(
    issuer: TestIssuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_keys, "REFRESH_S_MIN", 0.0)
    known = at(issuer)
    issuer.is_away = True
    assert await known.identify(issuer.token()) is Problem.ISSUER_AWAY
    assert "keys of tokens could not be fetched" in caplog.text
    assert "status 503" in caplog.text
    issuer.is_away = False
    assert isinstance(await known.identify(issuer.token()), Identity)
    issuer.is_away = True
    issuer.add_key("k2")
    assert await known.identify(issuer.token(key_id="k2")) is Problem.KEY
    assert isinstance(await known.identify(issuer.token()), Identity)
    assert "the 1 known ones are kept" in caplog.text


async def test_a_key_that_was_withdrawn_is_gone_after_an_hour(
    issuer: TestIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = at(issuer)
    token = issuer.token()
    assert isinstance(await known.identify(token), Identity)
    del issuer.keys["k1"]
    issuer.add_key("k2")
    monkeypatch.setattr(token_keys, "REFRESH_S_MIN", 0.0)
    monkeypatch.setattr(token_keys, "AGE_S_MAX", 0.0)
    # Beside this login, which need not wait.
    assert isinstance(await known.identify(token), Identity)
    fetch = known.issuers[0].keys._fetch
    assert fetch is not None
    await fetch
    assert await known.identify(token) is Problem.KEY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"keys": {}}', None),
        (b"[" * 100_000, None),
        (b'{"keys": [1, {}, {"kty": "RSA"}, {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}]}', {}),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "e"}]}', {}),
    ],
)
def test_a_document_without_usable_keys_gives_none(text: bytes, expected: object) -> None:
    """A shared secret is never a key: who knows it could make tokens."""
    if expected is None:
        with pytest.raises(ValueError, match=r"."):
            token_keys.parse_jwks(text)
    else:
        assert token_keys.parse_jwks(text) == expected


def test_short_keys_are_left_out() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()
    assert token_keys.key_of(short) is None


def hostile(issuer: TestIssuer) -> dict[str, tuple[str, Problem]]:
    """Return tokens that somebody would try, and why each is refused."""
    good = issuer.token("read:*/*")
    header, payload, signature = good.split(".")
    claims = {"sub": "till", "aud": RESOURCE, "exp": int(time.time()) + 60, "scope": []}
    public = issuer.pem()

    def signed_with_public(stated: dict[str, Any]) -> str:
        text = f"{part(stated)}.{part(claims)}"
        return f"{text}.{part(hmac.digest(public, text.encode(), hashlib.sha256))}"

    other = TestIssuer()
    changed = part(claims | {"sub": "admin"})
    rs256 = {"alg": "RS256", "kid": "k1"}
    return {
        "alg none": (f"{part({'alg': 'none'})}.{part(claims)}.", Problem.ALGORITHM),
        "alg None": (f"{part({'alg': 'None', 'kid': 'k1'})}.{part(claims)}.", Problem.ALGORITHM),
        "no alg": (f"{part({'kid': 'k1'})}.{part(claims)}.{signature}", Problem.ALGORITHM),
        "a list for alg": (
            f"{part({'alg': ['RS256'], 'kid': 'k1'})}.{payload}.{signature}",
            Problem.ALGORITHM,
        ),
        "a map for iss": (
            f"{header}.{part(claims | {'iss': {'a': []}})}.{signature}",
            Problem.SIGNATURE,
        ),
        "HS256 by the public key": (
            signed_with_public({"alg": "HS256", "kid": "k1"}),
            Problem.ALGORITHM,
        ),
        "a signature of another kind": (
            f"{part({'alg': 'ES256', 'kid': 'k1'})}.{payload}.{signature}",
            Problem.ALGORITHM,
        ),
        "other claims": (f"{header}.{changed}.{signature}", Problem.SIGNATURE),
        "somebody's key": (other.token(), Problem.SIGNATURE),
        "no signature": (f"{header}.{payload}.", Problem.SIGNATURE),
        "a key in the header": (
            jwt.encode(
                claims,
                other.keys["k1"][1],
                "RS256",
                headers={"kid": "mine", "jwk": {"kty": "RSA"}, "jku": "http://127.0.0.1:1/"},
            ),
            Problem.KEY,
        ),
        "a path for a key": (
            f"{part({'alg': 'RS256', 'kid': '../../../dev/null'})}.{payload}.{signature}",
            Problem.KEY,
        ),
        "a kid that is no text": (
            f"{part({'alg': 'RS256', 'kid': ['k1']})}.{payload}.{signature}",
            Problem.UNREADABLE,
        ),
        "crit": (f"{part(rs256 | {'crit': ['x']})}.{payload}.{signature}", Problem.UNREADABLE),
    }


def wrong_claims(issuer: TestIssuer) -> dict[str, tuple[str, Problem]]:
    """Return tokens whose claims cannot be read, or are those of others."""
    header, _, signature = issuer.token("read:*/*").split(".")
    digits = b'{"exp":' + b"9" * 9000 + b"}"
    return {
        "deep header": (f"{part(b'{' + b'[' * 9000)}.e30.{signature}", Problem.UNREADABLE),
        "deep payload": (f"{header}.{part(b'[' * 9000)}.{signature}", Problem.UNREADABLE),
        "digits": (f"{header}.{part(digits)}.{signature}", Problem.UNREADABLE),
        "a list": (f"{header}.{part([])}.{signature}", Problem.UNREADABLE),
        "no base64": (f"{header}.a.{signature}", Problem.UNREADABLE),
        "1970": (issuer.token(exp=1), Problem.EXPIRED),
        "expired": (issuer.token(seconds=-1), Problem.EXPIRED),
        "no end": (issuer.token(exp=None), Problem.UNREADABLE),
        "later": (issuer.token(nbf=int(time.time()) + 60), Problem.NOT_YET),
        "for others": (issuer.token(aud="other"), Problem.AUDIENCE),
        "5,000 scopes": (issuer.token(*(f"read:v/{n}" for n in range(5000))), Problem.SCOPES),
    }


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["RS256", "k1", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
HEADERS = ("alg", "kid", "typ", "crit", "b64", "jwk", "zip")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    path = tmp_path_factory.mktemp("keys") / "k1.pem"
    path.write_bytes(TestIssuer().pem())
    return taken(signing_keys={"k1": str(path)})


@given(
    header=st.dictionaries(st.sampled_from(HEADERS), JSON) | JSON | st.binary(max_size=20),
    payload=st.dictionaries(st.sampled_from(("iss", "exp", "aud")), JSON) | st.binary(max_size=20),
    signature=st.binary(max_size=256),
)
def test_whatever_stands_in_a_token_it_is_refused_with_a_reason(
    known: Tokens, header: Any, payload: Any, signature: bytes
) -> None:
    token = f"{part(header)}.{part(payload)}.{part(signature)}"
    assert isinstance(asyncio.run(known.identify(token)), Problem)


async def test_hostile_tokens_are_refused_with_their_reason(issuer: TestIssuer) -> None:
    known = at(issuer)
    assert isinstance(await known.identify(issuer.token()), Identity)
    tried = hostile(issuer) | wrong_claims(issuer)
    found = {name: await known.identify(token) for name, (token, _) in tried.items()}
    assert found == {name: why for name, (_, why) in tried.items()}


async def test_a_token_until_the_year_9999_is_taken(issuer: TestIssuer) -> None:
    found = await at(issuer).identify(issuer.token(exp=253_402_300_800))
    assert isinstance(found, Identity)
    assert found.expires_ms == 253_402_300_799_000


async def test_what_became_of_a_token_is_written_down_and_the_token_is_not(
    issuer: TestIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    who = authenticator(USERS, Trusting("right"), tokens=at(issuer))
    bad = issuer.token(aud="other")
    assert await who.authenticate(auth.credentials("", bad), HERE) is None
    assert who.records.refused == {("amqp", Problem.AUDIENCE): 1}
    assert "the token is for somebody else (aud)" in caplog.text
    assert not any(text in caplog.text for text in bad.split("."))
    assert bad not in repr(auth.credentials("", bad))
    found = await who.authenticate(auth.credentials("anybody", issuer.token()), HERE)
    assert found is not None
    assert found.user == "till"
    # Passwords are what they were.
    assert await who.authenticate(auth.credentials("till", "right"), HERE) == Identity(
        "till", ("monitoring",)
    )
    assert await who.authenticate(auth.credentials("till", "eyJ.no.token"), HERE) is None


async def test_guest_is_guest_whoever_says_so(issuer: TestIssuer) -> None:
    """R-CON-7."""
    variables = Variables()
    variables.loopback_users = ["guest"]
    who = authenticator(USERS, Trusting("right"), variables=variables, tokens=at(issuer))
    token = auth.credentials("", issuer.token(sub="guest"))
    far = Client("amqps", "10.0.0.7", "x")
    assert await who.authenticate(token, HERE) is not None
    assert await who.authenticate(token, far) is None
    assert who.records.refused == {("amqps", login_records.LOOPBACK): 1}


async def test_a_new_token_must_name_the_same_user(issuer: TestIssuer) -> None:
    """R-CON-13."""
    who = authenticator(USERS, Trusting("right"), tokens=at(issuer))
    first = await who.authenticate(auth.credentials("", issuer.token("read:*/*")), HERE)
    assert first is not None
    second = await who.renew(first, issuer.token("write:*/*", seconds=900).encode(), HERE)
    assert second is not None
    assert second.scopes != first.scopes
    assert (second.expires_ms or 0) > (first.expires_ms or 0)
    for bad in (issuer.token(sub="other"), issuer.token(seconds=-1), "right", "", "\udcff"):
        assert await who.renew(first, bad.encode("utf-8", "surrogateescape"), HERE) is None


async def test_service_accounts_stand_for_users_of_the_catalog(issuer: TestIssuer) -> None:
    kubernetes = KubernetesConfig(issuer="https://cluster", jwks_url=f"{issuer.url}/openid/v1/jwks")
    driver = CatalogDriver()
    put_user(driver, "till", "monitoring", "serviceaccount:shop/orders")
    known = tokens.of_config(OAuthConfig(), kubernetes, driver.view, clock_ms)
    assert known is not None

    async def of(account: str, **claims: Any) -> object:
        subject = f"system:serviceaccount:{account}"
        stated = {"iss": "https://cluster", "aud": ["brokerd"], "sub": subject}
        return await known.identify(issuer.token(**(stated | claims)))

    found = await of("shop:orders")
    assert isinstance(found, Identity)
    tags = ("monitoring", "serviceaccount:shop/orders")
    assert (found.user, found.tags, found.scopes) == ("till", tags, None)
    assert found.is_by_token
    # Neither a rule nor a user, an audience or an issuer of somebody else's.
    assert await of("shop:other") is Problem.USER
    assert await of("shop:orders", sub="till") is Problem.USER
    assert await of("shop:orders", aud=["https://kubernetes.default.svc"]) is Problem.AUDIENCE
    assert await of("shop:orders", iss="https://elsewhere") is Problem.ISSUER
    # Users change while the member runs; an account of two is nobody's.
    put_user(driver, "other", "serviceaccount:shop/other", "serviceaccount:shop/orders")
    assert isinstance(await of("shop:other"), Identity)
    assert await of("shop:orders") is Problem.USER
    assert driver.do(catalog_commands.delete("user", "", "other", cause="admin"))["code"] == "OK"
    assert isinstance(await of("shop:orders"), Identity)
    assert await of("shop:other") is Problem.USER


async def test_both_issuers_side_by_side_do_not_vouch_for_each_other(issuer: TestIssuer) -> None:
    cluster = TestIssuer()
    driver = CatalogDriver()
    put_user(driver, "till", "serviceaccount:a/b")
    with cluster.serving():
        known = taken(
            view=driver.view,
            kubernetes=KubernetesConfig(
                issuer="https://cluster",
                jwks_url=f"{cluster.url}/keys",
            ),
            jwks_url=f"{issuer.url}/keys",
        )
        claims = {"iss": "https://cluster", "sub": "system:serviceaccount:a:b"}
        assert isinstance(await known.identify(cluster.token(**claims)), Identity)
        assert isinstance(await known.identify(issuer.token()), Identity)
        assert await known.identify(issuer.token(**claims)) is Problem.SIGNATURE
        assert await known.identify(cluster.token(iss=issuer.url)) is Problem.SIGNATURE


async def test_the_members_own_token_is_shown_to_the_api_server(
    issuer: TestIssuer, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("mine\n")
    known = tokens.of_config(
        OAuthConfig(),
        KubernetesConfig(issuer="c", jwks_url=f"{issuer.url}/keys", token_file=str(path)),
        CatalogDriver().view,
        clock_ms,
    )
    assert known is not None
    assert await known.identify(issuer.token(iss="c")) is Problem.USER
    assert issuer.authorizations == ["Bearer mine"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"jwks_url": "http://issuer/keys", "resource_server_id": "x"}, "expected https"),
        ({"issuer": "ftp://issuer", "resource_server_id": "x"}, "expected https"),
        ({"jwks_url": "https:///keys", "resource_server_id": "x"}, "expected https"),
        ({"jwks_url": "http://[::1", "resource_server_id": "x"}, "expected https"),
        ({"jwks_url": "https://issuer/keys"}, "resource_server_id is needed"),
        ({"algorithms": "none"}, "none: there are RS256"),
        ({"algorithms": "HS256"}, "HS256: there are RS256"),
        ({"signing_keys": "k=v"}, "expected a JSON object"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(settings: dict[str, Any], text: str) -> None:
    variables = {f"BROKERD_OAUTH2_{name.upper()}": value for name, value in settings.items()}
    with pytest.raises(ConfigError, match=text):
        load(None, variables, {})


def test_tables_stand_in_the_environment_as_json() -> None:
    variables = {
        "BROKERD_OAUTH2_SCOPE_ALIASES": '{"admin": "mq.tag:administrator mq.read:*/*"}',
    }
    config = load(None, variables, {})
    assert config.oauth2.scope_aliases == {"admin": "mq.tag:administrator mq.read:*/*"}
