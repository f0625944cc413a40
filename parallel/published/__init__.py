"""Reads linears that were quantized before their checkpoint was published: codes, scales and zero
points of any format, in one form.
"""
