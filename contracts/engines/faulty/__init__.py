"""Engines with a known fault: the negative control of every clause.

`tiny` makes models in memory, `program` runs one honestly under every setting an engine can have, `weights` and
`behaviour` break it, and `catalogue` says which faults there are. Needs torch and transformers.
"""
