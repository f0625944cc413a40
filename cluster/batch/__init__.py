"""Batches: files of requests, answered line by line by Ray Data."""
