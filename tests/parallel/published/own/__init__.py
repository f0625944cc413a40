"""Checkpoints by the formats' own packers; only `made` can be imported without them."""
