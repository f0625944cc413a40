"""Work of an engine replica that would hold up its event loop, and the threads that do it."""
