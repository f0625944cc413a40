"""The routes, by kind."""
