"""A gateway between a scripted engine and its clients, each in a process of its own, in lock-step:
the engine makes the next step when the clients have all of the last one's tokens.
"""
