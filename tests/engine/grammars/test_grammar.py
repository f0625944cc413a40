"""A compiled grammar's reserve of lexers."""

import subprocess
import sys

# A grammar that counts as slow, and many lexers to make when the process ends.
ENDS_AT_ONCE = """
from engine.grammars import grammar
from engine.grammars.source import grammar_source
from engine.grammars.byte_vocabulary import of_bytes

grammar.RENEWABLE_SECONDS, grammar.NUM_IN_RESERVE = -1.0, 200
grammar.Grammar(grammar_source("regex", "[a-z]{1,50}"), of_bytes())
"""


def test_a_process_may_end_while_lexers_are_made() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
