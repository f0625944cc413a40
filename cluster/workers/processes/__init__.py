"""The ranks' processes: how they start, how the driver knows that they live, how they end."""
