"""What nodes are, as they say themselves."""
