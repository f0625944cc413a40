"""Products with weights, plain and quantized, dense and by experts."""
