"""Actors beside those of Serve: their names, and when they end."""
