"""Weights that a trainer broadcasts in a group with members on the engines' nodes."""
