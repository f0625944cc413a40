"""How requests reach the gateways: by HAProxy, which Serve manages, or by Serve's own proxy."""
