"""The client's connection: how a part of an answer gets to it, and whether it is still there."""
