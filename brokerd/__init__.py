"""brokerd: a clustered message broker that speaks AMQP 0-9-1 and gRPC."""

import os

__version__ = "0.1.0"

# The folder is compiled.INSTALLED: without one, and without a wish, nothing more is imported here.
if "BROKERD_COMPILED" in os.environ or os.path.isdir(os.path.join(__path__[0], "_compiled")):
    from brokerd import compiled

    compiled.choose(os.environ.get("BROKERD_COMPILED", ""))
