"""For whoever operates a cluster: commands that look at it."""
