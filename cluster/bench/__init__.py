"""`squadron bench`: latency and throughput of the engine, and of a server as its clients see it."""

from cluster.bench.command import add_options, run

__all__ = ["add_options", "run"]
