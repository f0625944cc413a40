"""Attention over the paged cache, and what writes and moves its blocks."""
