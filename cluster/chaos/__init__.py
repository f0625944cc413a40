"""`squadron chaos`: identical streams to a server under faults, each held against an undisturbed
run of the same request.
"""

from cluster.chaos.command import add_options

__all__ = ["add_options"]
