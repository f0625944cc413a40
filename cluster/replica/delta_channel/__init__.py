"""The delta channel: an engine replica's deltas and reports, on their way to the gateways."""
