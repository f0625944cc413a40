"""Weights that take the place of a model's while it is served."""
