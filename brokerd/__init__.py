"""brokerd: a clustered message broker that speaks AMQP 0-9-1 and gRPC."""

import os

__version__ = "0.1.0"

if "BROKERD_COMPILED" in os.environ:
    from brokerd import compiled

    compiled.choose(os.environ["BROKERD_COMPILED"])
