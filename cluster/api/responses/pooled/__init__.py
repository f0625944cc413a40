"""The answers to requests for numbers."""
