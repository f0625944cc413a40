"""Requests to many engines, simulated: the gateways' own choices, scripted engines, no clock."""
