"""The draft model: what it computes and guesses at the end of a step."""
