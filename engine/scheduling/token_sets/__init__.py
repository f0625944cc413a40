"""Sets of tokens that requests allow or rule out, of which workers have copies, and bad words."""
