"""brokerd: a clustered message broker that speaks AMQP 0-9-1 and gRPC."""

__version__ = "0.1.0"
