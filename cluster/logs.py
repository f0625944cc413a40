"""Logging of our Serve replicas."""

import logging

from ray.serve._private.constants import SERVE_LOGGER_NAME


def log_beside_serve() -> None:
    """In a Serve replica: write our log lines, from INFO on, to its log file."""
    ours, handlers = logging.getLogger("squadron"), logging.getLogger(SERVE_LOGGER_NAME).handlers
    if handlers:  # otherwise this is not a replica, and the caller configures logging
        ours.setLevel(logging.INFO)
        ours.propagate = False
        ours.handlers[:] = handlers
        # Python reports a log that cannot be written on stderr, and Serve writes stderr to the log:
        # an endless loop on a full disk.
        logging.raiseExceptions = False
