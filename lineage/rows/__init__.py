"""Rows as canonical bytes: their encoding, order, digests and hashes."""
