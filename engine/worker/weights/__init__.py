"""Where a rank's weights come from."""
