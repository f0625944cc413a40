"""Sampling steps in plain torch, the same on every device: they compare, and add two numbers, which
is exact wherever it runs. All in place, on [R, V] float32.
"""
