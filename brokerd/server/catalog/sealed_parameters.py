"""Passwords in the URIs of upstreams and shovels: sealed on the way into the log, opened for links.

A parameter's URI is sealed by the member that proposes it, once the cluster's flag says that all
members can read that; so the log, snapshots and whatever is made of them hold no password.  The
same URI keeps what is stored of it, so that writing it again is no change; a definition without a
URI keeps the one that is there, so that an export without passwords can be imported again.

Called by member_catalog.py before a proposal, and by those who need the URIs as they are:
federation, and an export that asks for them.  Keys are keyring.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from brokerd.federation import shovel
from brokerd.federation.upstream import SEALED
from brokerd.server.catalog.keyring import Keyring, SealError

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState

log = logging.getLogger(__name__)

Json = dict[str, Any]

#: The components whose parameters hold secrets, and the keys that do.
URI_KEYS = {"federation-upstream": ("uri",), shovel.COMPONENT: shovel.URI_KEYS}
_WHY = "this member has no key (secrets.key_file), or the feature flag sealed_secrets is off"


def seal(operation: Json, view: CatalogState, keyring: Keyring) -> None:
    """Seal the URIs in an operation of the catalog that is about to be proposed.

    One that cannot be sealed gets a verdict: a password is not stored in another way than was
    asked for.
    """
    for each in operation.get("operations", (operation,)):
        keys = uri_keys(each["name"]) if _puts_parameter(each) else ()
        if keys:
            key = ""
            try:
                for key in keys:
                    _seal_put(each, key, view, keyring)
            except SealError as error:
                each.setdefault("verdict", f"{key} cannot be stored: {error}")
                # What is refused goes into the log, too.
                value = {k: item for k, item in each["spec"]["value"].items() if k not in keys}
                each["spec"] = each["spec"] | {"value": value}


def uri_keys(name: str) -> tuple[str, ...]:
    """Return the keys of a parameter that may hold a password; name: with its component."""
    return URI_KEYS.get(name.partition("/")[0], ())


def _puts_parameter(operation: Json) -> bool:
    return (
        operation.get("do") == "put"
        and operation.get("kind") == "parameter"
        and isinstance(operation["spec"].get("value"), dict)
    )


def _seal_put(put: Json, key: str, view: CatalogState, keyring: Keyring) -> None:
    vhost, name, value = put["vhost"], put["name"], put["spec"]["value"]
    present = view.get("parameter", vhost, name)
    stored = None if present is None else present.spec()["value"]
    stored = stored.get(key) if isinstance(stored, dict) else None
    about = _about(vhost, name)
    wanted = value.get(key)
    if any(text.startswith(SEALED) for text in _texts(wanted)):
        raise SealError("it is encrypted already; give it as it is")
    if wanted is None:
        if stored is None:
            return
        assert present is not None
        # Another one that was set meanwhile must not be replaced by what we have seen.
        put["precondition"] = {"hash": present.hash()} | (put.get("precondition") or {})
        wanted = _each(stored, lambda text: _opened(text, about, keyring))
    if keyring.is_on:
        known = {
            _opened(text, about, keyring): text
            for text in _texts(stored)
            if keyring.is_current(text)
        }

        def sealed(text: str) -> str:
            # One that no key opens stays as it is; it may be right for another member.
            if not has_secret(text) or text.startswith(SEALED):
                return text
            return known.get(text) or keyring.seal(text, about)

        wanted = _each(wanted, sealed)
    elif any(has_secret(text) for text in _texts(wanted)):
        log.warning("the password of %s in vhost '%s' is stored as it is: %s", name, vhost, _WHY)
    put["spec"] = put["spec"] | {"value": value | {key: wanted}}


def opened(vhost: str, name: str, value: Any, keyring: Keyring) -> Any:
    """Return a definition with its URIs as they are; what no key opens stays sealed.

    name: the parameter's, with its component.
    """
    if not isinstance(value, dict):
        return value
    about = _about(vhost, name)
    found = {
        key: _each(value[key], lambda text: _opened(text, about, keyring))
        for key in uri_keys(name)
        if any(text.startswith(SEALED) for text in _texts(value.get(key)))
    }
    return value | found


def of_vhost(
    vhost: str, component: str, found: Mapping[str, Any], keyring: Keyring
) -> dict[str, Any]:
    """Return all parameters of a component of a vhost for its links, by name."""
    return {
        name: opened(vhost, f"{component}/{name}", value, keyring) for name, value in found.items()
    }


def exported(name: str, vhost: str, spec: Json, keyring: Keyring, *, with_passwords: bool) -> Json:
    """Return a parameter's spec for an export: its URIs only if they hold no secret, or were
    asked for and can be opened.
    """
    value = spec.get("value")
    keys = uri_keys(name)
    if not keys or not isinstance(value, dict):
        return spec
    shown: Json = opened(vhost, name, value, keyring) if with_passwords else value

    def is_shown(key: str) -> bool:
        texts = _texts(shown.get(key))
        if with_passwords:
            return not any(text.startswith(SEALED) for text in texts)
        return not any(has_secret(text) for text in texts)

    kept = {key: item for key, item in shown.items() if key not in keys or is_shown(key)}
    return spec | {"value": kept}


def listed(name: str, vhost: str, value: Any, keyring: Keyring) -> Any:
    """Return a parameter's value for listings, in which URIs have no user, password or query; one
    that cannot be taken apart for certain, or opened, is left out.
    """
    keys = uri_keys(name)
    if not keys or not isinstance(value, dict):
        return value
    shown: Json = {}
    for key, item in opened(vhost, name, value, keyring).items():
        if key not in keys:
            shown[key] = item
            continue
        found = _each(item, without_login)
        if all(isinstance(text, str) for text in (found if isinstance(found, list) else [found])):
            shown[key] = found
    return shown


def without_login(uri: str) -> str | None:
    """Return a URI without who logs in, and how; None: where that ends is not certain."""
    if not has_secret(uri):
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    # What is left of a password that has one of "/?#" in it stands there, with the "@" behind it.
    if (
        not parts.scheme
        or uri.startswith(SEALED)
        or "@" in parts.path + parts.query + parts.fragment
    ):
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def has_secret(text: str) -> bool:
    """Tell whether a URI may hold a password: who or how to log in is said in it."""
    return text.startswith(SEALED) or "@" in text or "?" in text


def _about(vhost: str, name: str) -> str:
    return f"parameter\0{vhost}\0{name}"


def _texts(uri: Any) -> list[str]:
    """R-FED-2: a text, or a list of them; the rest is for the link to complain of."""
    found = uri if isinstance(uri, list) else [uri]
    return [text for text in found if isinstance(text, str)]


def _each(uri: Any, change: Any) -> Any:
    if isinstance(uri, list):
        return [change(text) if isinstance(text, str) else text for text in uri]
    return change(uri) if isinstance(uri, str) else uri


def _opened(text: str, about: str, keyring: Keyring) -> str:
    if not text.startswith(SEALED):
        return text
    try:
        return keyring.open(text, about)
    except SealError:
        # The link says so (federation/upstream.py), with the key's name.
        return text
