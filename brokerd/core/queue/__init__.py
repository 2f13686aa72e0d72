"""One queue: its machine, its commands and its effects.  Pure."""
