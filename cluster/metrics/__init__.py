"""Metrics for operators' monitoring: names, counters, sums over processes, and Prometheus' text."""
