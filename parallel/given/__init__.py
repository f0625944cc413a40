"""Weights that are given as tensors, not as files."""
