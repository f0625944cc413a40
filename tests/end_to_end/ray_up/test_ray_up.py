"""`ray up` with configs/cluster/on-premise.yaml, for real, on three nodes inside this machine;
lab.py says how.

Not run by default: it needs root, sshd and rsync, two minutes and 3 GB. `pytest -m ray_up -s
tests/end_to_end/ray_up` prints the times.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from tests.end_to_end.ray_up.lab import REPOSITORY, CommandFailed, Lab

pytestmark = [pytest.mark.ray_up, pytest.mark.timeout(3600)]

T = TypeVar("T")

# Not 127.0.0.1, by which Serve names to a node what is on the same one.
HEAD, *WORKERS = NODES = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
PATIENCE_SECONDS = 600.0  # more than anything here takes, on two slow cores too
ENVIRONMENT = "source ~/squadron/configs/cluster/environment.sh"
ASK = str(Path(__file__).with_name("ask.py"))
# On two nodes.
GATEWAYS = "    deployments: [{name: GatewayDeployment, num_replicas: 2, max_replicas_per_node: 1}]"
DEPLOY_TWO_GATEWAYS = f"(cat configs/serve/demo.yaml; echo '{GATEWAYS}') > two.yaml; serve deploy two.yaml"
CONNECT = f'python -c \'import ray; ray.init("{HEAD}:6379"); print("connected")\''


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Three nodes and the operator's machine, where /tmp/cluster.yaml is the cluster file with its
    four lines edited.
    """
    cluster = yaml.safe_load((REPOSITORY / "configs/cluster/on-premise.yaml").read_text())
    cluster["provider"].update(head_ip=HEAD, worker_ips=WORKERS)
    cluster["auth"].update(ssh_user="root", ssh_private_key="/mnt/user_key")
    print(f"\nlogs: {tmp_path}")
    with Lab(NODES, logs=tmp_path) as lab:
        lab.write("/tmp/cluster.yaml", yaml.safe_dump(cluster, sort_keys=False))
        yield lab
    assert lab.processes_left() == []


def test_without_a_token_nothing_starts(lab: Lab) -> None:
    with pytest.raises(CommandFailed, match=r"No such file or directory: '.*/\.ray/auth_token'"):
        lab.run("ray", "up", "--yes", "/tmp/cluster.yaml")
    environment = (REPOSITORY / "configs/cluster/environment.sh").read_text()
    with pytest.raises(CommandFailed, match="no authentication token was found"):
        lab.on_node(HEAD, f"{environment}\nray start --head --node-ip-address={HEAD}")
    assert ray_processes(lab, HEAD) == []


def test_a_cluster_comes_up_answers_and_goes(lab: Lab) -> None:
    lab.run("ray", "get-auth-token", "--generate")
    began = time.monotonic()
    said = lab.run("ray", "up", "--yes", "/tmp/cluster.yaml", timeout=PATIENCE_SECONDS)
    assert "Ingress: HAProxy\n" in said.replace("\r", "")
    report("head up", began)
    eventually(lambda: node_addresses(lab) == NODES)
    report("three nodes alive", began)
    answer = eventually(lambda: lab.run("python", ASK, f"http://{HEAD}:8000/v1", "What is 17 + 25?"))
    report("application answers", began)
    assert answer == "42"

    lab.on_node(HEAD, "kill -KILL $(pgrep gcs_server)")
    eventually(lambda: "was started again" in lab.on_node(HEAD, "cat ~/gcs_keeper.log"))
    eventually(lambda: node_addresses(lab) == NODES)
    assert lab.run("python", ASK, f"http://{HEAD}:8000/v1", "What is 17 + 25?") == "42"
    report("GCS killed, and three nodes alive again", began)

    actors = [actor for node in NODES for actor in squadron_actors(lab, node)]
    assert sorted(name for _, name, _ in actors) == ["EngineDeployment", *["WorkerActor"] * 4]
    assert {niceness for *_, niceness in actors} == {os.nice(0)}
    assert len({node for node, *_ in actors}) > 1  # one node's CPU is too little for all of them

    lab.on_node(HEAD, f"{ENVIRONMENT}; cd ~/squadron; {DEPLOY_TWO_GATEWAYS}")
    with_haproxy = eventually(lambda: nodes_with_haproxy(lab))
    for node in with_haproxy:
        assert lab.run("python", ASK, f"http://{node}:8000/v1", "What is 17 + 25?") == "42"
    report(f"answers from {len(with_haproxy)} HAProxy", began)

    assert "connected" in lab.on_node(HEAD, f"{ENVIRONMENT}; {CONNECT}")
    with pytest.raises(CommandFailed, match="Failed to connect to Ray cluster"):
        lab.on_node(HEAD, f"{ENVIRONMENT}; RAY_AUTH_MODE=disabled {CONNECT}")
    with pytest.raises(CommandFailed, match="token is missing or incorrect"):
        lab.on_node(WORKERS[0], f"{ENVIRONMENT}; RAY_AUTH_TOKEN=guessed ray status --address {HEAD}:6379")

    began = time.monotonic()
    lab.run("ray", "down", "--yes", "/tmp/cluster.yaml", timeout=PATIENCE_SECONDS)
    report("head down", began)
    assert ray_processes(lab, HEAD) == []
    eventually(lambda: not any(ray_processes(lab, worker) for worker in WORKERS))
    report("workers down", began)


def node_addresses(lab: Lab) -> list[str]:
    """The nodes that Ray counts as alive, by the head's word."""
    listing = lab.on_node(HEAD, f"{ENVIRONMENT}; ray list nodes --filter state=ALIVE --format json 2>/dev/null")
    return sorted(node["node_ip"] for node in json.loads(listing))


def nodes_with_haproxy(lab: Lab) -> list[str]:
    """Those that HAProxy listens on, at their own address alone, once the head and another are. No
    gateway and no proxy of Serve's listens elsewhere.
    """
    found = []
    for node in NODES:
        listeners = listeners_of(lab, node)
        http = [address for name, address in listeners if name == "haproxy"]
        assert http in ([], [f"{node}:8000"])
        found += [node] * len(http)
        inner = [address for _, address in listeners if 30_000 <= int(address.rpartition(":")[2]) < 31_000]
        inner += [address for _, address in listeners if 8_500 <= int(address.rpartition(":")[2]) < 8_600]
        assert {address.rpartition(":")[0] for address in inner} <= {node}
    return found if HEAD in found and len(found) > 1 else []


def listeners_of(lab: Lab, address: str) -> list[tuple[str, str]]:
    """The sockets of a node's processes: a process' name (15 characters) and host:port."""
    lines = lab.on_node(address, "ss --listening --tcp --numeric --processes --no-header").splitlines()
    named = re.compile(r'users:\(\("([^"]+)"')
    return [(found[1], line.split()[3]) for line in lines if (found := named.search(line))]


def ray_processes(lab: Lab, address: str) -> list[str]:
    """Ray's processes on a node, but for its agents: without a head they take a minute longer to
    end, and hold nothing.
    """
    roles = ("ray::Serve", "ray::Proxy", "ray::Worker")
    commands = lab.on_node(address, "ps ax -o args").splitlines()
    return [command for command in commands if "/ray/core/src/ray/" in command or command.startswith(roles)]


def squadron_actors(lab: Lab, address: str) -> list[tuple[str, str, int]]:
    """The engines and ranks on a node: its address, their class, their niceness."""
    processes = [line.split(maxsplit=1) for line in lab.on_node(address, "ps ax -o ni=,args=").splitlines()]
    class_name = re.compile(r"ray::.*(EngineDeployment|WorkerActor)")
    return [(address, found[1], int(nice)) for nice, title in processes if (found := class_name.match(title))]


def eventually(probe: Callable[[], T]) -> T:
    """The first true value of `probe`; after PATIENCE_SECONDS its last failure, or
    AssertionError.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if value := probe():
                return value
            assert time.monotonic() < deadline, f"still {value!r} after {PATIENCE_SECONDS} s"
        except CommandFailed:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def report(event: str, began: float) -> None:
    print(f"{event}: {time.monotonic() - began:.1f} s")
