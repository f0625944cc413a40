"""From a `Call` to the bytes of its answer, whole or as events."""
