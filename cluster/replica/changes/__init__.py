"""What trainers have done to an engine replica: other weights, pauses, sleep."""
