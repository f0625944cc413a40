"""Ray: on this machine, its processes, its logs and its access control; elsewhere, a connection."""
