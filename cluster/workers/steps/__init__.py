"""Steps out to the ranks, and what they answer."""
