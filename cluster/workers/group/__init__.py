"""One epoch of an engine: how its ranks are seated, run, and are released."""
