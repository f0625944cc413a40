"""`python -m cluster.ingress.certificate_watch PID PEM ADMIN`: gives HAProxy, the process PID, its
new certificate whenever the files change, for as long as it runs.

Connections stay, and new ones get the new certificate. One that could not be served is not taken
as long as it could not.
"""

import json
import logging
import os
import select
import sys
from pathlib import Path

from cluster.certificate import CertificateFiles, told_files
from cluster.ingress.closing import ask
from cluster.ingress.haproxy import LOG_FORMAT, write_private
from engine.errors import InvalidConfig

LOOK_SECONDS = 1.0
_logger = logging.getLogger("certificate")


class AsJson(logging.Formatter):
    """An object for each event, with Serve's names."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"levelname": record.levelname, "asctime": self.formatTime(record), "component_name": record.name}
        return json.dumps(told | {"message": record.getMessage()})


def main(arguments: list[str]) -> None:
    pid, pem, admin = int(arguments[0]), Path(arguments[1]), arguments[2]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    if os.environ.get(LOG_FORMAT) == "json":
        logging.getLogger().handlers[0].setFormatter(AsJson())
    files = told_files()
    assert files is not None, "there is nothing to watch"
    try:
        haproxy = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    turn = Turn(pem.with_suffix(".watch"))
    state: object = None
    problem: str | None = None
    while not select.select([haproxy], [], [], LOOK_SECONDS)[0]:
        if not turn.is_mine():
            if is_followed(pid, admin):
                return
            continue
        if (now := files.state) != state or problem is not None:
            state, problem = now, renew(files, pem, admin, problem)


def is_followed(pid: int, admin: str) -> bool:
    """Whether a successor of the HAProxy has taken its place."""
    try:
        told = ask(admin, "show info")
    except OSError:
        return False
    return "\nPid: " in told and f"\nPid: {pid}\n" not in told


class Turn:
    """Whose it is to watch: HAProxy's successor brings its own watch, which takes it. It comes back
    if that one ends before we do, as where the successor could not start, or was not waited for.
    """

    def __init__(self, path: Path) -> None:
        """`path`: of the file that says it."""
        self._path = path
        self._other: tuple[str, int] | None = None  # who has it, with a descriptor of that process
        self._take()

    def is_mine(self) -> bool:
        told = self._path.read_text()
        if told == str(os.getpid()):
            return True
        if self._other is None or self._other[0] != told:
            self._forget()
            try:
                self._other = told, os.pidfd_open(int(told))
            except ProcessLookupError:
                self._take()
                return False  # until the next look: others that waited may have taken it, too
        if select.select([self._other[1]], [], [], 0)[0]:
            self._forget()
            self._take()
        return False

    def _take(self) -> None:
        write_private(self._path, str(os.getpid()).encode())

    def _forget(self) -> None:
        if self._other is not None:
            os.close(self._other[1])
        self._other = None


def renew(files: CertificateFiles, pem: Path, admin: str, before: str | None = None) -> str | None:
    """Have HAProxy serve what is in `files`; `pem` is what it serves, and its next start. What kept
    it from that, if anything did: it may be done later, since HAProxy may have been busy, or about
    to start. `before`: the last such reason, which the log has.
    """
    try:
        content = files.read()
        if content != pem.read_bytes():
            _serve(content, pem, admin)
            write_private(pem, content)
            _logger.info(f"HAProxy has the new certificate of {files.certfile}")
    except (InvalidConfig, OSError) as error:
        if str(error) != before:
            _logger.error(f"HAProxy keeps its certificate: {error}")
        return str(error)
    return None


def _serve(content: bytes, pem: Path, admin: str) -> None:
    """Raises OSError with what HAProxy says."""
    lines = "\n".join(line for line in content.decode("latin-1").splitlines() if line.strip())
    for command in (f"set ssl cert {pem} <<\n{lines}\n", f"commit ssl cert {pem}"):
        answer = ask(admin, command)
        if "Transaction" not in answer and "Success!" not in answer:
            ask(admin, f"abort ssl cert {pem}")
            raise OSError(f"HAProxy refused it: {' '.join(answer.split())}")


if __name__ == "__main__":
    main(sys.argv[1:])
