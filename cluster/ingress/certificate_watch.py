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
    me = pem.with_suffix(".watch")  # the file says who watches: HAProxy's successor brings its own
    write_private(me, str(os.getpid()).encode())
    try:
        haproxy = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    state: object = None
    problem: str | None = None
    while not select.select([haproxy], [], [], LOOK_SECONDS)[0]:
        if me.read_text() != str(os.getpid()):
            return
        if (now := files.state) != state or problem is not None:
            state, problem = now, renew(files, pem, admin, problem)


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
