"""Changing the catalog from this member."""
