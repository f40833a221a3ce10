"""Whether a model's numbers hold: contracts, engines, evidence, judging, certificates and the gate."""
