"""AMQP clients: listener, connections, channels, what is delivered to them.  Front door."""
