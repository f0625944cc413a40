"""The operations that layers are made of, and the backends that compute them.

A backend is a module with the functions of `Ops`: `ops.reference` (plain torch, the specification), `ops.cpu` (C++),
`ops.kernels` (Triton). It is chosen once, by name, and handed to the layers as an argument.

Shapes: T token rows, S sequences, R sampled rows, D hidden size, H query heads, K key-value heads, V vocabulary. "dtype" is
the model's (float32, bfloat16, float16). Index tensors are int32. Sums are taken in float32 and in a fixed order.
"""
