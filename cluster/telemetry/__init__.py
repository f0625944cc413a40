"""Spans and log lines of requests, for operators. They hold numbers, ids and our own words; never
text of a prompt or of an answer, and no key.
"""
