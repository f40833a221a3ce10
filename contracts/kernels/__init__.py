"""Divergence measures between two rows of logits."""
