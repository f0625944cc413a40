"""The models that requests may name."""
