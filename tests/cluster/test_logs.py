"""A line of the log is an event."""

import io
import logging
from logging.handlers import MemoryHandler

import pytest
from ray.serve._private.constants import SERVE_LOGGER_NAME

from cluster.logs import OneLine, log_beside_serve, serve_logging, write_one_line_each


def written(told: logging.Formatter, message: str, *arguments: object, error: Exception | None = None) -> str:
    record = logging.LogRecord("squadron", logging.INFO, "", 0, message, arguments, None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    return told.format(record)


def test_nothing_breaks_a_line() -> None:
    told = OneLine(logging.Formatter("%(levelname)s %(message)s"))
    assert written(told, "id=%s", "a\r\nINFO\tb\x1b[2J\x00\x85\u2028\u2029é") == (
        r"INFO id=a\r\nINFO" + "\t" + r"b\x1b[2J\x00\u0085\u2028\u2029é"
    )
    assert written(told, "failed", error=ValueError("two\nlines")) == r"INFO failed\nValueError: two\nlines"


def test_serves_handlers_write_a_line_each() -> None:
    file = io.StringIO()
    target = logging.StreamHandler(file)
    target.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger(SERVE_LOGGER_NAME)
    kept, logger.handlers[:] = logger.handlers[:], [MemoryHandler(1, target=target)]
    try:
        write_one_line_each()
        write_one_line_each()  # a gateway and an engine in one process
        logger.error("one\ntwo")
    finally:
        logger.handlers[:] = kept
    assert file.getvalue() == "one\\ntwo\n"


def test_what_opentelemetry_says_keeps_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    for name in (SERVE_LOGGER_NAME, "squadron", "opentelemetry"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler] * (name == SERVE_LOGGER_NAME))
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    log_beside_serve()
    logging.getLogger("opentelemetry.exporter").error("no spans")
    logging.getLogger("opentelemetry.exporter").info("a batch")
    assert file.getvalue() == "ERROR no spans\n"


def test_the_format_is_serves() -> None:
    assert (serve_logging("json").encoding, serve_logging("text", logs_calls=False).enable_access_log) == (
        "JSON",
        False,
    )
