"""Several machines inside this one, on which `ray up` runs for real: sshd, rsync, `pip install`,
`ray stop` and all.

`Lab` starts `lab.sh` under `unshare`. Inside, the network is a loopback and nothing else; each of
the addresses 127.0.0.2, 127.0.0.3, ... is a node: an sshd with a PID namespace, a home, /tmp, /run
and /dev/shm of its own. The operator is one more machine, the only one that sees the repository. So
`ray stop`, which kills every Ray process it can see, sees those of its own node, and what `pip
install` or a setup command writes lands in a tmpfs that goes with the lab. The nodes share the
Python the tests run under; pip is told not to look for an index, for there is no network.

Traps: a port bound on 0.0.0.0 is bound for all nodes, as they share the loopback. The launcher's
ssh leaves a control process behind for 10 s, which would hold an inherited pipe open: output goes
to files. The lab ends when its stdin is closed, so it cannot outlive the tests, however they end.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from select import select
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[3]
LAB_SCRIPT = Path(__file__).with_name("lab.sh")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "unshare": "util-linux",
}


class LabUnavailable(RuntimeError):
    """This machine cannot hold the lab; the message says what is missing."""


class CommandFailed(RuntimeError):
    """A command in the lab did not end with status 0 in time; the message holds its output."""


class Lab:
    """A machine at each of `addresses` and the operator's, while the context lasts; what was
    printed is kept in `logs`.
    """

    def __init__(self, addresses: list[str], logs: Path) -> None:
        self.addresses = addresses
        self.logs = logs

    def __enter__(self) -> Self:
        """Raises LabUnavailable."""
        require_tools()
        namespaces = ["--net", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
        with (self.logs / "lab.log").open("w") as log:
            self.process = subprocess.Popen(
                ["unshare", *namespaces, LAB_SCRIPT, *self.addresses],
                env={
                    "PATH": SYSTEM_PATH,
                    "REPOSITORY": str(REPOSITORY),
                    "PYTHON_PREFIX": sys.prefix,
                    "PYTHON_BASE_PREFIX": sys.base_prefix,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        readable, _, _ = select([self.process.stdout], [], [], 60)
        if not readable or self.process.stdout.readline() != b"ready\n":
            self.end()
            raise LabUnavailable(f"the lab did not start: {(self.logs / 'lab.log').read_text()}")
        self.network = os.readlink(f"/proc/{self.process.pid}/ns/net")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.keep_ray_logs()
        finally:
            self.end()

    def run(self, *command: str, timeout: float = 240) -> str:
        """Run `command` on the operator's machine, in the repository; returns stdout and stderr.
        Raises CommandFailed.
        """
        log = self.logs / f"{len(list(self.logs.iterdir())):03}-{Path(command[0]).name}.log"
        namespaces = f"/proc/{self.process.pid}/ns"
        enter = ["nsenter", f"--net={namespaces}/net", f"--mount={namespaces}/mnt"]
        enter += [f"--pid={namespaces}/pid_for_children", "env", "-C", str(REPOSITORY)]
        with log.open("w") as output:
            try:
                status: object = subprocess.run(
                    [*enter, *command],
                    env={"PATH": f"{sys.prefix}/bin:{SYSTEM_PATH}", "HOME": os.path.expanduser("~root")},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                ).returncode
            except subprocess.TimeoutExpired:
                status = f"none after {timeout} s"
        if status != 0:
            raise CommandFailed(f"{' '.join(command)}: status {status}\n{log.read_text()}")
        return log.read_text()

    def on_node(self, address: str, command: str, timeout: float = 240) -> str:
        """Run a shell command on a node, by ssh; returns stdout and stderr. Raises
        CommandFailed.
        """
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        flags = [flag for option in options for flag in ("-o", option)]
        return self.run("ssh", "-i", "/mnt/user_key", *flags, f"root@{address}", command, timeout=timeout)

    def write(self, path: str, text: str) -> None:
        """Write a file on the operator's machine."""
        Path(f"/proc/{self.process.pid}/root{path}").write_text(text)

    def keep_ray_logs(self) -> None:
        """Copy what Ray wrote on each node into `logs`, leaving out its sockets."""
        for address in self.addresses:
            # Where Ray has them unless told otherwise, in the node's own file system.
            sessions = Path(f"/proc/{self.process.pid}/root/mnt/{address}") / "tmp/ray"
            if sessions.is_dir():
                subprocess.run(
                    ["rsync", "-a", "--no-D", "--info=nonreg0", f"{sessions}/", f"{self.logs}/{address}/"], timeout=60
                )

    def end(self) -> None:
        """End every process: the lab's first one goes with its stdin, and is gone when the kernel
        has killed the rest.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def processes_left(self) -> list[str]:
        """Command lines of the processes in the lab's network: none once the lab has ended."""
        left = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/net") == self.network:
                    left.append((process / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile, or is not ours
                continue
        return left


def require_tools() -> None:
    """Raises LabUnavailable unless we are root and every program the lab starts is installed."""
    if os.geteuid() != 0:
        raise LabUnavailable("the lab makes network and mount namespaces: run it as root")
    missing = sorted(package for tool, package in PACKAGES.items() if shutil.which(tool, path=SYSTEM_PATH) is None)
    if missing:
        raise LabUnavailable(f"missing programs: apt-get update && apt-get install {' '.join(missing)}")
