"""Renders chat templates, in processes of their own: see `template_process`."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import InputProcessingError, InvalidRequest
from engine.text.template_process import FAILED, MAX_CPU_SECONDS, REFUSED, UNFINISHED, receive, send

ROOT = str(Path(__file__).resolve().parents[2])
ANSWER_SECONDS = 60.0  # after which a process that neither answers nor computes (for example a stopped one) is killed


class TakesLong(Exception):
    """The conversation is not rendered after its first share of time."""


class TemplateRenderer:
    """A chat template, rendered by one process per concurrent call. Thread-safe."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._idle: list[_TemplateProcess] = []
        weakref.finalize(self, _end_all, self._idle)

    def start(self) -> None:
        """Start a process for the first conversation."""
        self._idle.append(_TemplateProcess(self._source))

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], seconds: float | None = None
    ) -> str:
        """Raises InvalidRequest with the template's own complaint, InputProcessingError if it fails
        or takes too much, and TakesLong after `seconds` of processor time, if any are given.
        """
        try:
            process = self._idle.pop()
        except IndexError:
            process = _TemplateProcess(self._source)
        try:
            text = process.render(messages, variables, seconds)
        except (InvalidRequest, InputProcessingError, TakesLong):
            self._idle.append(process)
            raise
        except (EOFError, OSError) as error:
            process.end()
            if process.has_used_share:
                raise TakesLong from None
            if process.is_new or process.is_out_of_time:
                raise InputProcessingError(process.why_it_ended(error)) from None
            return self.render(messages, variables, seconds)  # it was killed, perhaps long ago
        except BaseException:  # for example Ctrl-C: its answer may still arrive, and the next call must not get it
            process.end()
            raise
        self._idle.append(process)
        return text


class _TemplateProcess:
    """The parent's end. The process is unusable after an exception that the caller did not
    cause.
    """

    def __init__(self, source: str) -> None:
        self.is_new = True
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                # -S: without site and its hooks; installed packages are found by our own path, and
                # these (of an editable installation perhaps by a hook alone) by their folder.
                [sys.executable, "-S", "-P", "-m", "engine.text.template_process"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, *filter(None, sys.path)])},
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C in a terminal must reach only the parent
            )
        send(self._socket, source.encode())

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], seconds: float | None) -> str:
        send(self._socket, pickle.dumps((list(messages), dict(variables), seconds), pickle.HIGHEST_PROTOCOL))
        answer = receive(self._socket)
        self.is_new = False
        kind, text = answer[:1], answer[1:].decode(errors="surrogatepass")
        if kind == UNFINISHED:
            raise TakesLong
        if kind == REFUSED:
            raise InvalidRequest(f"the chat template refuses these messages: {text}", param="messages")
        if kind == FAILED:
            raise InputProcessingError(f"the chat template failed: {text}")
        return text

    def end(self) -> None:
        self._process.kill()
        self._socket.close()
        self._process.wait()

    @property
    def is_out_of_time(self) -> bool:
        return self._process.returncode == -signal.SIGXCPU

    @property
    def has_used_share(self) -> bool:
        return self._process.returncode == -signal.SIGVTALRM

    def why_it_ended(self, error: BaseException) -> str:
        if self.is_out_of_time:
            return f"the chat template was ended after {MAX_CPU_SECONDS} s of computing"
        return f"the chat template's process was lost: {type(error).__name__}: {error}"


def _end_all(processes: list[_TemplateProcess]) -> None:
    for process in processes:
        process.end()
