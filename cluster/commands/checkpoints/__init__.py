"""Commands that make checkpoints, or compare them with their manifests."""
