"""The model, sharded: rank arithmetic, collectives, layers, weights. Computes with `ops`; knows no
requests.
"""
