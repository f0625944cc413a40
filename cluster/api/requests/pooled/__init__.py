"""Requests that are answered with numbers: embeddings, and relevance scores."""
