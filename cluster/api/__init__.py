"""The OpenAI-compatible HTTP layer: knows requests, answers and one `Service`, and nothing of where
that runs.
"""
