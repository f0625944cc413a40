"""`squadron chaos`: streams from a server under faults, each compared with an undisturbed run of
the same request.
"""

from cluster.chaos.command import add_options

__all__ = ["add_options"]
