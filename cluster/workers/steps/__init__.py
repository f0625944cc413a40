"""Sends steps to the ranks, and receives their results."""
