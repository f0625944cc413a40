"""From logits to a token and its logprobs."""
