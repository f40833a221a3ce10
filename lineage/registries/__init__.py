"""Registries that mirror the ledger for people to browse; one file per registry."""
