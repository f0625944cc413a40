"""Compiles a grammar for the first time in a separate process, with limits on time and memory.

The library's own limits do not bound all of its work: twenty-six patterns that must all match have
it compute for minutes. What has been compiled here, for a vocabulary of the 256 bytes, is compiled
for the model's in the engine's process, in about the same time.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from engine.errors import InvalidRequest
from engine.grammars.interface import GrammarTakesLong
from engine.grammars.trial_child import GRAMMAR, MAX_CPU_SECONDS, MAX_MEMORY_BYTES
from engine.structured_outputs import INVALID_SCHEMA, TOO_COMPLEX, StructuredOutputs

# Of a grammar that has passed on another engine, perhaps just so: its request has tokens already.
ACCEPTED_CPU_SECONDS = 30
ANSWER_SECONDS = 60.0  # after which a process that neither answers nor computes is killed
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_OF_LIMITS = ("too complex", "too large", "too big", "too many", "fuel", "limit")  # in errors that limits cause


class TrialProcess:
    """Started by the first trial, and again after one that it did not survive. Thread-safe: trials
    wait for one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def source(
        self, asked: StructuredOutputs, *, was_accepted: bool = False, first_seconds: float | None = None
    ) -> str:
        """The grammar as the library takes it. Raises InvalidRequest, which names the field, and
        GrammarTakesLong after `first_seconds` of processor time, if any are given. `was_accepted`:
        by another engine.
        """
        cpu_seconds = ACCEPTED_CPU_SECONDS if was_accepted else MAX_CPU_SECONDS
        with self._lock:
            question = json.dumps([asked.kind, asked.text, cpu_seconds, first_seconds])
            told = self._ask_once(question)
            if told is None and self._status() in _KILLED:  # perhaps by another program
                self.close()
                told = self._ask_once(question)
            if told is None and self._status() == -signal.SIGPROF and first_seconds is not None:
                self._renew()
                raise GrammarTakesLong
            if told is None:
                why = self._why_it_ended(cpu_seconds)
                self._renew()
                raise InvalidRequest(f"{asked.param} {why}", param=asked.param, code=TOO_COMPLEX)
        if told[0] == GRAMMAR:
            return told[1:]
        code = INVALID_SCHEMA if asked.kind in ("json", "json_object") else "invalid_value"
        if any(words in told for words in _OF_LIMITS):
            code = TOO_COMPLEX
        raise InvalidRequest(f"{asked.param} cannot be compiled: {told[1:]:.300}", param=asked.param, code=code)

    def close(self) -> None:
        """End the process; idempotent."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._connection.close()
            self._process.wait()
        self._process = self._connection = None

    def _renew(self) -> None:
        """Start the next process before a grammar waits for it: its imports take as long as many a
        compilation may.
        """
        self.close()
        try:
            self._start()
        except OSError:
            self.close()  # the next trial tries again

    def _ask_once(self, question: str) -> str | None:
        """None if the process did not survive it."""
        try:
            return self._ask(question)
        except (EOFError, OSError):
            return None

    def _status(self) -> int | None:
        """Of the process' end; None if it goes on."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return None

    def _ask(self, question: str) -> str:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        assert self._connection is not None
        self._connection.send_bytes(question.encode())
        if not self._connection.poll(ANSWER_SECONDS):
            raise EOFError
        return self._connection.recv_bytes().decode()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -S: without site and its hooks; installed packages are found by our own path.
                [sys.executable, "-S", "-P", "-m", "engine.grammars.trial_child"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C in a terminal must reach only the parent
            )
        self._connection = Connection(ours.detach())

    def _why_it_ended(self, cpu_seconds: int) -> str:
        status = self._status()
        if status is None:
            return f"could not be compiled within {ANSWER_SECONDS:g} s"
        if status in (-signal.SIGPROF, -signal.SIGXCPU):
            return f"takes more than {cpu_seconds} s of computing to compile"
        return f"ended the process that compiled it ({status}), perhaps by more than {MAX_MEMORY_BYTES} bytes"
