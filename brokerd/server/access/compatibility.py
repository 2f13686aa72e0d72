"""As which product and version a member introduces itself to clients (R-VER-1)."""

from __future__ import annotations

from brokerd.core.profiles import Profile

#: What client libraries that look at versions are to believe (R-VER-1).
_COMPATIBLE_VERSIONS = {"rabbitmq-3.10": "3.10.8", "rabbitmq-3.13": "3.13.7"}


def compatible_version(profile: Profile) -> str:
    """Return the version of RabbitMQ that the active profile follows (R-VER-1)."""
    # What is laid over a profile (`rabbitmq-3.10+mrg`) does not make it another RabbitMQ.
    return _COMPATIBLE_VERSIONS.get(profile.name.partition("+")[0], "4.3.6")


def compatible_product(profile: Profile) -> str:
    """Return the product's name: RabbitMQ's own profiles stand in for it by name too, as
    amqplib's suite asks; `brokerd_version` says what it really is (R-VER-1).
    """
    return "RabbitMQ" if profile.name.startswith("rabbitmq-") else "brokerd"
