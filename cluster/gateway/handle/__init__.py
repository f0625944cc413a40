"""The gateway for other Ray jobs: plain dicts both ways."""
