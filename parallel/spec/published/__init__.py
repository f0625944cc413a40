"""Checkpoints that were published quantized: which tensors stand for a linear's weight, and what
their numbers mean. Needs no torch.
"""
