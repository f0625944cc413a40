"""Everything between the network and the routes: hosts, keys, sizes, silent clients, lost
gateways.
"""
