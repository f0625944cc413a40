"""`python -m cluster.launch.node.gcs_keeper`, on the head after `ray start --head`: starts Ray's
GCS again whenever it dies, so that what it has stored is used.

Nothing else does: Ray itself leaves a head without a GCS, whose nodes end a minute later. The new
one is the same program with the same arguments, at the same port. With the raylet gone, by `ray
stop` for one, Ray has ended, and so does the keeper.
"""

import argparse
import contextlib
import logging
import os
import select
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidConfig

logger = logging.getLogger("squadron.gcs_keeper")

MOST_STARTS, WITHIN_SECONDS = 5, 60.0  # of a GCS that dies each time
PROGRAM = "gcs_server"


@dataclass(frozen=True, slots=True)
class GcsCommand:
    """How a running GCS was started."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str

    @classmethod
    def of(cls, pid: int) -> "GcsCommand":
        """Raises OSError if there is no such process of this user."""
        process = Path(f"/proc/{pid}")
        variables = [part.partition("=") for part in _parts(process / "environ")]
        environment = {name: value for name, _, value in variables}
        return cls(tuple(_parts(process / "cmdline")), environment, os.readlink(process / "cwd"))

    @property
    def session(self) -> str:
        """The argument that Ray gives all processes of a cluster."""
        return next(each for each in self.arguments if each.startswith("--session-name="))

    def check(self) -> None:
        """Raises InvalidConfig if a new one would know nothing, or be at another port."""
        has_redis = any(each.startswith("--redis_address=") for each in self.arguments)
        if not has_redis and self.environment.get("RAY_gcs_storage") != "rocksdb":
            raise InvalidConfig(
                "Ray's GCS keeps what it knows in memory: set RAY_gcs_storage=rocksdb and RAY_gcs_storage_path=FOLDER, "
                "or RAY_REDIS_ADDRESS, before `ray start --head`"
            )
        if "--gcs_server_port=0" in self.arguments:
            raise InvalidConfig("Ray's GCS has chosen its port itself: give `ray start --head` a --port")

    def start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.arguments, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def has_raylet(self) -> bool:
        """Whether Ray still runs on this node."""
        return any(self.session in _parts(Path(f"/proc/{pid}/cmdline")) for pid in _running("raylet"))


def keep(pid: int) -> None:
    """Returns once Ray has ended. Raises InvalidConfig, OSError; SystemExit for a GCS that keeps
    dying.
    """
    command = GcsCommand.of(pid)
    command.check()
    with contextlib.ExitStack() as stack:
        waiting = os.pidfd_open(pid)
        stack.callback(os.close, waiting)
        poll = select.poll()  # select.select takes no descriptors above 1023
        poll.register(waiting, select.POLLIN)
        logger.info("watching the GCS, process %d", pid)
        poll.poll()
    starts: deque[float] = deque(maxlen=MOST_STARTS)
    while command.has_raylet():
        if len(starts) == MOST_STARTS and time.monotonic() < starts[0] + WITHIN_SECONDS:
            raise SystemExit(f"the GCS died {MOST_STARTS} times within {WITHIN_SECONDS:g} s: see its log")
        starts.append(time.monotonic())
        process = command.start()
        logger.warning("the GCS has died, and was started again as process %d", process.pid)
        process.wait()


def gcs_at(port: int) -> int:
    """The process id of this user's GCS. Raises InvalidConfig."""
    for pid in _running(PROGRAM):
        with contextlib.suppress(OSError):
            if f"--gcs_server_port={port}" in _parts(Path(f"/proc/{pid}/cmdline")):
                return pid
    raise InvalidConfig(f"no GCS of this user is at port {port}: `ray start --head --port={port}` starts one")


def _running(program: str) -> list[int]:
    """Process ids of this user's processes of a program."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if (folder / "exe").readlink().name == program:
                found.append(int(folder.name))
    return found


def _parts(path: Path) -> list[str]:
    """Of a file of /proc; none if the process has ended, before it was opened or after."""
    try:
        return path.read_text(errors="surrogateescape").rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.launch.node.gcs_keeper", description=__doc__)
    parser.add_argument("--port", type=int, default=6379, help="the GCS's, of ray start --port (default: %(default)s)")
    port = parser.parse_args().port
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        keep(gcs_at(port))
    except InvalidConfig as error:
        sys.exit(f"gcs_keeper: {error}")


if __name__ == "__main__":
    main()
