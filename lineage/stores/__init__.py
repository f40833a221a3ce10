"""Where the ledger's entries are kept; one file per store."""
