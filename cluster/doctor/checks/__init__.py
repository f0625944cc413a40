"""What may be wrong with them; each failure comes with its remedy."""
