"""The processes that ranks are: how they start, how it shows that they live, how they end."""
