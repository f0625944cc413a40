"""The page that a gateway serves: a playground, and a live view of the engines."""
