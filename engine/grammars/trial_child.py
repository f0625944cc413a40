"""The process that `TrialProcess` starts: it compiles grammars, and the kernel limits its memory
and its processor time.

Over a socket pair the parent sends the kind of a grammar, its text, the processor time that it may
take, and a first share of it or null, as JSON; the child answers with a letter and a text: the
grammar as the library takes it, or why there is none. The end of its time or share ends the process
(SIGPROF).
"""

import json
import os
import resource
import signal
from multiprocessing.connection import Connection

from llguidance import LLTokenizer

from engine.grammars.byte_vocabulary import of_bytes
from engine.grammars.source import TRIAL_STACK, compiled, grammar_source, on_stack

MAX_CPU_SECONDS = 1  # of processor time: a busy machine does not use it up
MAX_MEMORY_BYTES = 2 << 30
GRAMMAR, REFUSED = "g", "x"


def main() -> None:
    """The child: answers until the parent closes the connection."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary = of_bytes()
    with Connection(os.dup(0)) as parent:
        try:
            while True:
                kind, text, cpu_seconds, share = json.loads(parent.recv_bytes())
                _allow_more_time(cpu_seconds)
                signal.setitimer(signal.ITIMER_PROF, share or cpu_seconds)
                answer = _answer(kind, text, vocabulary)
                signal.setitimer(signal.ITIMER_PROF, 0)
                parent.send_bytes(answer.encode(errors="replace"))
        except (EOFError, ConnectionError):
            pass  # the parent has ended, or has closed the connection


def _answer(kind: str, text: str, vocabulary: LLTokenizer) -> str:
    try:
        source = grammar_source(kind, text)  # type: ignore[arg-type]  # as it was sent
        on_stack(TRIAL_STACK, lambda: compiled(source, vocabulary))
    except ValueError as error:
        return REFUSED + str(error)
    return GRAMMAR + source


def _allow_more_time(cpu_seconds: int) -> None:
    """The kernel kills this process (SIGXCPU) after that much more processor time, in whole seconds
    rounded up: should its timer not.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
