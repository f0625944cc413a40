"""Ray on machines of namespaces, started as `configs/cluster` starts it, and Serve on it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import yaml

from cluster.launch.packages import ROOT
from tests.end_to_end.namespaces.machines import Machine, make_machine

T = TypeVar("T")

GCS_PORT, HTTP_PORT = 6379, 8000
PATIENCE_SECONDS = 300.0
HEAD = 1  # the head's number
ENGINES = {"squadron-role": "engine"}  # a label of the workers
TOKEN = "a-token-of-this-run-alone"
OBJECT_STORE_BYTES = 100_000_000
ENVIRONMENT = "source configs/cluster/environment.sh && export RAY_prestart_worker_first_driver=0"


class DeployFailed(Exception):
    """In Serve's words."""


class RayNodes:
    """A head and the machines that join it, by name."""

    def __init__(self) -> None:
        self.head = self._machine("head", HEAD)
        self.workers: dict[str, Machine] = {}

    def start_head(self) -> None:
        """Ray's processes on the head, and the keeper of its GCS."""
        self._start(self.head, f"ray start --head --port={GCS_PORT} {_options({})}")
        self.on(self.head, "configs/cluster/keep_gcs.sh")

    def add_worker(self, name: str, number: int) -> Machine:
        machine = self.workers[name] = self._machine(name, number)
        self._start(machine, f"ray start --address={self.head.address}:{GCS_PORT} {_options(ENGINES)}")
        return machine

    def on(self, machine: Machine, line: str) -> str:
        """What a line prints, in the environment that Ray's commands have there."""
        return machine.run(f"{ENVIRONMENT} && {line}", PATIENCE_SECONDS)

    def _start(self, machine: Machine, line: str) -> None:
        """Again if it fails: Ray gives its processes 30 s, too few where much else runs."""
        try:
            self.on(machine, line)
        except subprocess.CalledProcessError:
            self.on(machine, "ray stop --force")  # which sees this machine's processes only
            self.on(machine, line)

    def alive(self) -> list[str]:
        """The addresses of the nodes that Ray counts as alive, in order."""
        listing = self.on(self.head, "ray list nodes --filter state=ALIVE --format json 2>/dev/null")
        return sorted(node["node_ip"] for node in json.loads(listing))

    def machines(self) -> list[Machine]:
        """Those that are there."""
        return [self.head, *self.workers.values()]

    def deploy(self, args: dict[str, Any], *, apart: str | None) -> None:
        """`serve deploy` of configs/serve/demo.yaml with these `args` of `build_app`. `apart`: the
        deployment of which no node has two replicas, if any.
        """
        config = yaml.safe_load((ROOT / "configs/serve/demo.yaml").read_text())
        (application,) = config["applications"]
        application["args"] = args
        if apart is not None:
            application["deployments"] = [{"name": apart, "max_replicas_per_node": 1}]
        (self.head.root / "tmp/serve.yaml").write_text(yaml.safe_dump(config))
        self.on(self.head, "serve deploy /tmp/serve.yaml")

    def is_running(self) -> bool:
        """Whether Serve has all that it is to have. Raises DeployFailed."""
        status = yaml.safe_load(self.on(self.head, "serve status"))
        application = status["applications"].get("squadron", {"status": "NOT_STARTED"})
        if application["status"] == "DEPLOY_FAILED":
            raise DeployFailed(application["message"])
        states = {state for each in application.get("deployments", {}).values() for state in each["replica_states"]}
        return application["status"] == "RUNNING" and states == {"RUNNING"}

    @staticmethod
    def _machine(name: str, number: int) -> Machine:
        machine = make_machine(name, number)
        home = machine.root / "tmp/home"
        os.symlink(sys.prefix, home / "squadron/.venv")
        (home / ".ray").mkdir()
        (home / ".ray/auth_token").write_text(TOKEN)
        (home / ".ray/auth_token").chmod(0o600)
        return machine


def eventually(probe: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The first true value of `probe`. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = probe()
        except subprocess.SubprocessError as error:
            value = error
        else:
            if value:
                return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {value!r} after {seconds:g} s")
        time.sleep(0.3)


def _options(labels: Mapping[str, str]) -> str:
    labelled = "".join(f" --labels {name}={value}" for name, value in labels.items())
    return f"--node-ip-address=$NODE_IP --num-cpus=1 --object-store-memory={OBJECT_STORE_BYTES}{labelled}"
