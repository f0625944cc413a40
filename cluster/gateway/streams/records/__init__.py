"""What an actor of the store holds, and what changes in it."""
