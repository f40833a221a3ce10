"""Programs that compute logits; one file per engine."""
