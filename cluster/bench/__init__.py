"""`squadron bench`: latency and throughput of the engine, and what clients of a server see, in the
field's terms.
"""

from cluster.bench.command import add_options, run

__all__ = ["add_options", "run"]
