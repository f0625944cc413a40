"""What is told of requests to those who watch the server: spans and log lines. Numbers, ids and
words of ours; never text of a prompt or of an answer, and no key.
"""
