"""The child's end of a trial: one answer for each question, until the parent is gone."""

import json
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from engine.grammars.trial_child import GRAMMAR, MAX_MEMORY_BYTES, REFUSED

SECONDS = 120.0


def test_it_answers_until_the_parent_has_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen([sys.executable, "-m", "engine.grammars.trial_child"], stdin=theirs.fileno())
    with Connection(ours.detach()) as parent:
        for kind, text, letter, words in (
            ("regex", "[0-9]+", GRAMMAR, "start: /"),
            ("regex", "(a", REFUSED, "unclosed group"),
            ("json", "{", REFUSED, "Expecting property name"),
            ("json", json.dumps({"enum": []}), REFUSED, "Unsatisfiable"),
            ("grammar", 'start: "a"', GRAMMAR, "start: "),
        ):
            parent.send_bytes(json.dumps([kind, text, 1, None]).encode())
            told = parent.recv_bytes().decode()
            assert told.startswith(letter) and words in told, told
        limits = Path(f"/proc/{child.pid}/limits").read_text().splitlines()
        memory = next(line for line in limits if line.startswith("Max address space"))
        assert str(MAX_MEMORY_BYTES) in memory
    assert child.wait(SECONDS) == 0
