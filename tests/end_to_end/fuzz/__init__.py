"""Inputs of every kind, good and bad, and what a server may make of them: `python -m
tests.end_to_end.fuzz`.
"""
