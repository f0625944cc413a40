"""The open requests of a gateway: what their clients were sent, and their attempts."""
