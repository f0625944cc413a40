"""API keys: where they come from, which one a request has, and what each is allowed."""
