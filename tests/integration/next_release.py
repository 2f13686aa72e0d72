"""A member as the next release may have it, for tests of rolling upgrades: `python -m` this module.

It has a feature flag, and once that is enabled it writes annotations of messages in a form that
this release refuses, as it would be with the real thing.
"""

from __future__ import annotations

from typing import Any

from brokerd.core import annotations
from brokerd.core.annotations import Annotations
from brokerd.core.catalog import features
from brokerd.core.catalog.catalog_machine import CatalogMachine

FLAG = features.Feature("next_annotations", "0.2.0", "annotations in another form")
#: No form of this release begins so.
FORM = b"\x7f"

_encode, _decode = annotations.encode, annotations.decode
_start_machine = CatalogMachine.__init__
_machines: list[CatalogMachine] = []


def _remember_machine(self: CatalogMachine, *args: Any, **options: Any) -> None:
    _start_machine(self, *args, **options)
    _machines.append(self)


def _encode_by_flag(found: Annotations) -> bytes:
    raw = _encode(found)
    is_enabled = any(FLAG.name in machine.state.enabled_features for machine in _machines)
    return FORM + raw if raw and is_enabled else raw


if __name__ == "__main__":
    features.FEATURES = (FLAG,)
    CatalogMachine.__init__ = _remember_machine  # type: ignore[method-assign]
    annotations.encode = _encode_by_flag
    annotations.decode = lambda raw: _decode(raw.removeprefix(FORM))
    from brokerd.cli import main

    main()
