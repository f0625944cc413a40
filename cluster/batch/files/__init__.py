"""The files of a batch: its lines, where they are, and the answers so far."""
