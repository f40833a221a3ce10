"""Where a model came from: sources, cuts, snapshots, views, models, staleness and the ledger that orders them."""
