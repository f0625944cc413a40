"""The engine replicas as a gateway reaches them."""
