"""The harness that brings real applications every fault they claim to survive: `python -m
tests.end_to_end.chaos T1`.
"""
