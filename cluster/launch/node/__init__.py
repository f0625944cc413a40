"""Ray: on this machine, its processes, its logs and who may connect; elsewhere, a connection."""
