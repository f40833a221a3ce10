"""Rows that must go: requests, what they affect, and how they are closed."""
