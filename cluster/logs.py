"""Logging of our Serve replicas, and of Serve's proxies: a line for each event."""

import logging
from logging.handlers import MemoryHandler
from typing import Literal

from ray.serve._private.constants import SERVE_LOGGER_NAME
from ray.serve.schema import LoggingConfig

LogFormat = Literal["text", "json"]
# What ends a line for some reader of logs, or steers a terminal.
_ESCAPED = {ord(character): ascii(character)[1:-1] for character in map(chr, (*range(9), *range(10, 32), 127))}
_ESCAPED |= {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """As another formatter, on one line: messages may hold what clients sent, and exceptions have
    many lines.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        return self._formatter.format(record).translate(_ESCAPED)


def log_beside_serve() -> None:
    """In a Serve replica: write our log lines, from INFO on, to its log file, and those of
    OpenTelemetry's SDK: what it says on stderr would be there without its level.
    """
    ours, sdk = logging.getLogger("squadron"), logging.getLogger("opentelemetry")
    handlers = logging.getLogger(SERVE_LOGGER_NAME).handlers
    if handlers:  # otherwise this is not a replica, and the caller configures logging
        write_one_line_each()
        ours.setLevel(logging.INFO)
        for logger in (ours, sdk):
            logger.propagate = False
            logger.handlers[:] = handlers
        # Python reports a log that cannot be written on stderr, and Serve writes stderr to the log:
        # an endless loop on a full disk.
        logging.raiseExceptions = False


def write_one_line_each() -> None:
    """Have Serve's log file of this process get a line for each event, whatever it holds."""
    for handler in logging.getLogger(SERVE_LOGGER_NAME).handlers:
        target = handler.target if isinstance(handler, MemoryHandler) else None  # how Serve writes to its files
        if target is not None and target.formatter is not None and not isinstance(target.formatter, OneLine):
            target.setFormatter(OneLine(target.formatter))


def serve_logging(log_format: LogFormat, *, logs_calls: bool = True) -> LoggingConfig:
    """Serve's configuration of a component's log; `logs_calls`: a line for each call."""
    return LoggingConfig(encoding=log_format.upper(), enable_access_log=logs_calls)
