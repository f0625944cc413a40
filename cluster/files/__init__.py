"""Files that an operator names, and may change."""
