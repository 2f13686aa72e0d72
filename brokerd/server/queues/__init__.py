"""The queues, wherever their leaders are, as the rooms above talk to them."""
