"""`squadron bench`: latency and throughput of the engine, and of a server as its clients see it."""
