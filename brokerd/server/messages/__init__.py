"""The way of messages behind the front doors: publishing, delivery, dead letters, reply-to."""
