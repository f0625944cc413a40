"""`python -m tests.end_to_end.fuzz [--inputs N] [--url URL]`: every kind of input, for a server at
URL or else for a `squadron serve` of the demo model that is started, and a stream beside them;
status 1 if one gets what it must not, or the stream waits for too long.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster.progress import progress
from cluster.sockets import LOOPBACK
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import free_port
from tests.end_to_end.fuzz.judge import Judge
from tests.end_to_end.fuzz.neighbour import beside
from tests.end_to_end.fuzz.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N", help="about so many (default: 10000)")
    parser.add_argument("--url", metavar="URL", help="of a server that runs, such as http://127.0.0.1:8000")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    given = parser.parse_args()
    judge = Judge()
    for end in (signal.SIGINT, signal.SIGTERM):  # also as a background job: it tells what it has seen
        signal.signal(end, signal.default_int_handler)
    with contextlib.nullcontext(given.url) if given.url else serving() as url:
        try:
            with beside(url) as gaps, progress(total=given.inputs, unit="input") as bar:
                run(url, judge, given.inputs, number=given.seed, after_each=bar.update)
        except KeyboardInterrupt:
            judge.fail("interrupted", f"after {judge.num_inputs} inputs")
    judge.check_gaps(gaps)
    print("\n".join(judge.lines()), flush=True)
    return 1 if judge.failures else 0


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """`squadron serve` of the demo model on one rank; its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), port) as command:
        command.wait_until_ready()
        assert command.process.poll() is None, command.said
        yield f"http://{LOOPBACK}:{port}"


if __name__ == "__main__":
    sys.exit(main())
