"""What `LLM` is made of: an engine of this process' own, and its outputs under vLLM's names."""
