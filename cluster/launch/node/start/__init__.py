"""Ray starts on this machine, however busy it is."""
