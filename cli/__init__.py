"""How people ask: one noun or verb per file, thin over lineage and contracts."""
