"""What operators' monitoring reads: names, counters, sums over processes, and Prometheus' text."""
