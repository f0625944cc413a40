"""Checks and counts in front of the routes."""
