"""Server-rendered pages for people, on the port of the management API."""
