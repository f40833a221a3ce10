"""The lineage graph and freshness over time, drawn."""
