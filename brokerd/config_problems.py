"""What is wrong with a configuration, one line a setting: its name, what was expected, what it is.

The names are those by which the settings were given: a variable, a key of a file, a flag.  For
config.py, which finds the mistakes.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo


class ConfigError(Exception):
    """The configuration cannot be used; the text says which setting, what it is and what it may
    be.
    """


#: Of a value that is shown.
_SHOWN_CHARACTERS = 80
#: What RabbitMQ or a guess calls it, and the settings that do it.
_OTHER_NAMES = {
    "load_definitions": "definitions_path",
    "definitions_file": "definitions_path",
    "default_user": "auth_admin_user",
    "default_pass": "auth_admin_password",
    "vm_memory_high_watermark": "memory_high_watermark",
    "disk_free_limit": "disk_free_limit",
    "erlang_cookie": "cluster_secret",
    "nodename": "node_name",
    "channel_max": "limits_channel_max",
    "heartbeat": "limits_heartbeat_s",
    "data_dir": "node_data_dir",
    "port_offset": "node_port_offset",
}
_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}


def _names_of(sections: Mapping[str, type[BaseModel]]) -> list[str]:
    """Return all settings as `section_key`, the way variables write them."""
    return [
        f"{section}_{key}"
        for section, model in sections.items()
        for key in model.model_fields
        if not (section == "compat" and key == "switches")
    ]


def suggestion(given: str, sections: Mapping[str, type[BaseModel]]) -> str:
    """Return the setting (`section_key`) that `given` was probably meant to be, or "".

    sections: those whose name has an underscore before the shorter ones.
    """
    rest = "_".join(word for word in given.lower().replace("__", "_").split("_") if word)
    names = _names_of(sections)
    if _OTHER_NAMES.get(rest) in names:
        return _OTHER_NAMES[rest]
    if rest in names:
        return rest
    # The key alone, or with another section before it: limits_frame_max, not amqp_frame_max.
    for key in filter(None, (rest, rest.partition("_")[2])):
        by_key = [name for name in names if name.endswith(f"_{key}")]
        if len(by_key) == 1:
            return by_key[0]
    # Where the section is right, its keys are what was meant.
    section = next((name for name in sections if rest.startswith(f"{name}_")), "")
    if section:
        names = [name for name in names if name.startswith(f"{section}_")]
        keys = {name.removeprefix(f"{section}_"): name for name in names}
        close = difflib.get_close_matches(rest.removeprefix(f"{section}_"), keys, 1, cutoff=0.7)
        return keys[close[0]] if close else ""
    close = difflib.get_close_matches(rest, names, 1, cutoff=0.75)
    return close[0] if close else ""


def expected(field: FieldInfo) -> str:
    """Return in words what a setting may be."""
    annotation = field.annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(kind for kind in typing.get_args(annotation) if kind is not type(None))
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(annotation)))}"
    if typing.get_origin(annotation) is dict:
        return "a table"
    words = _KINDS.get(annotation, "another value")
    low = _bound(field, "ge")
    high = _bound(field, "le")
    longest = _bound(field, "max_length")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words} of at least {low}"
    if longest is not None:
        # The names of hosts and zones, the only texts that are bound.
        return f"{words} of at most {longest} characters, without spaces"
    return words


def _bound(field: FieldInfo, name: str) -> Any:
    found = (getattr(each, name, None) for each in field.metadata)
    return next((value for value in found if value is not None), None)


def shown(key: str, value: Any) -> str:
    """Return a wrong value as a line can have it; not what is secret."""
    if "password" in key or "secret" in key:
        return "is something else"
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "…"
    return f"is {text}"
