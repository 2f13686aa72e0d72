"""The streams between members."""
