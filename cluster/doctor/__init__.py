"""Looks at a cluster before or while it serves: what its nodes are, and what is wrong with them."""
