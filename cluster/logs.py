"""Where a Serve replica of ours writes its log."""

import logging

from ray.serve._private.constants import SERVE_LOGGER_NAME


def log_beside_serve() -> None:
    """In a Serve replica: have our lines in its log, from INFO on."""
    ours, handlers = logging.getLogger("squadron"), logging.getLogger(SERVE_LOGGER_NAME).handlers
    if handlers:  # else this is no replica, and logging is whoever's runs us
        ours.setLevel(logging.INFO)
        ours.propagate = False
        ours.handlers[:] = handlers
        # Python tells stderr of a log that cannot be written, and Serve writes stderr to its log:
        # without end, on a full disk.
        logging.raiseExceptions = False
