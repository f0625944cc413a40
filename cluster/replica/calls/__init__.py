"""Calls to engine replicas: what a gateway asks, and how a call may end."""
