"""Requests that are answered with numbers: embeddings, and how well documents fit a query."""
