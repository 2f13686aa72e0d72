"""Front door: the HTTP API of RabbitMQ's management plugin."""
