"""`squadron chaos`: streams from a server under faults, each compared with an undisturbed run of
the same request.
"""
