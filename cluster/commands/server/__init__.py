"""The options of `squadron serve`, its checks before the start, and its output."""
