"""The OpenAI-compatible HTTP layer: knows requests, answers and one `Service`, but not where that
runs.
"""
