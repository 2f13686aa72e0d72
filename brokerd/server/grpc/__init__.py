"""gRPC clients: the services Admin and Messages, their calls and logins.  Front door."""
