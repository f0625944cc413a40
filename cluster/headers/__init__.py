"""Headers between gateways and the HAProxy before them, which clients neither send nor see. Imports
Python's own library alone, because HAProxy's program has no other.
"""
