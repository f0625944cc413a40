"""What files in configs/serve say."""
