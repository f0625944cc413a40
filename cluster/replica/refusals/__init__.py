"""How an engine replica tells that it does not take a request, or gives it back."""
