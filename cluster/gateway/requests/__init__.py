"""The requests that a gateway has: what their clients were sent, and their attempts."""
