"""A member as the last release had it, for tests of rolling upgrades: `python -m` this module.

It understands no feature flag of this version, and what came with one is an error to it, as it
would be to the real thing.
"""

from __future__ import annotations

import json

from brokerd.core import annotations, features
from brokerd.core.annotations import Annotations

_decode = annotations.decode


def _decode_json_only(raw: bytes) -> Annotations:
    if raw:
        json.loads(raw)
    return _decode(raw)


if __name__ == "__main__":
    features.FEATURES = ()
    annotations.decode = _decode_json_only
    from brokerd.cli import main

    main()
