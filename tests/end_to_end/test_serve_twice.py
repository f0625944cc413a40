"""Serve on a cluster where it runs already, which is left as it is, and again on one where it has
ended.
"""

import subprocess
import sys

import pytest

from cluster.launch.app import build_app
from cluster.launch.packages import ROOT
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig
from tests.end_to_end.conftest import ENGINE, Server, free_port

TWICE = """
import sys, urllib.request
from ray import serve
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving

@serve.deployment(name="EngineDeployment")  # as `serving` expects one
class Nothing:
    def __call__(self):
        return "nothing"

with ray_cluster():
    for port in sys.argv[1:]:
        with serving(Nothing.bind(), host="127.0.0.1", port=int(port), ends_serve=True):
            print(port, urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).read().decode())
"""

FROZEN = """
import os, select, signal, sys
from ray import serve
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving
from tests.end_to_end.chaos.processes import descendants, title_of

@serve.deployment(name="EngineDeployment")  # as `serving` expects one
class Nothing:
    def __call__(self):
        return "nothing"

with ray_cluster():
    with serving(Nothing.bind(), host="127.0.0.1", port=int(sys.argv[1]), ends_serve=True, ingress="proxy"):
        titles = {title_of(pid): pid for pid in descendants(os.getpid())}
        (proxy,) = [pid for title, pid in titles.items() if "ProxyActor" in title]
        (replica,) = [pid for title, pid in titles.items() if "EngineDeployment" in title]
        ended = os.pidfd_open(replica)
        os.kill(proxy, signal.SIGSTOP)
    print("ended" if select.select([ended], [], [], 60.0)[0] else "left")
"""

ELSEWHERE = """
import sys, urllib.error, urllib.request
from ray import serve
from ray.cluster_utils import Cluster
from cluster.launch.app import build_app
from cluster.launch.ray_cluster import ray_cluster
from cluster.launch.serving import serving
from engine.errors import InvalidConfig

@serve.deployment(name="EngineDeployment")  # as `serving` expects one
class Nothing:
    def __call__(self):
        return "nothing"

others = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
with ray_cluster(others.address), serving(Nothing.bind(), host="127.0.0.1", port=int(sys.argv[1]), ends_serve=True):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/-/routes", timeout=30)
    except urllib.error.HTTPError as error:
        print(error.code)
application = build_app({"engine": {"model": "configs/demo", "device": "cpu", "kv_cache_memory_bytes": 1 << 25}})
try:
    with ray_cluster(others.address), serving(application, host="0.0.0.0", port=int(sys.argv[1]), ends_serve=True):
        print("everybody is let in")
except InvalidConfig as error:
    print(error)
others.shutdown()
"""


def test_a_second_application_is_refused_and_the_first_goes_on(server: Server) -> None:
    application = build_app({"engine": ENGINE})
    with (
        pytest.raises(InvalidConfig, match=r"Serve runs on this Ray cluster already, .* serves squadron; add"),
        serving(application, host=LOOPBACK, port=free_port()),
    ):
        pass
    answer = server.client().completions.create(model="demo", prompt="once", max_tokens=3)
    assert answer.choices[0].finish_reason in ("length", "stop")


@pytest.mark.long
def test_a_cluster_that_lasts_can_be_served_on_again_and_elsewhere() -> None:
    ports = [str(free_port()), str(free_port())]
    done = subprocess.run([sys.executable, "-c", TWICE, *ports], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    for port in ports:
        assert f"{port} nothing" in done.stdout.splitlines()


@pytest.mark.long
def test_a_proxy_that_is_frozen_does_not_keep_the_application_there() -> None:
    command = [sys.executable, "-c", FROZEN, str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert "ended" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.long
def test_the_proxies_of_a_cluster_that_others_started_are_set_up_too() -> None:
    """And an application that would let everybody in does not start, whoever deploys it."""
    command = [sys.executable, "-c", ELSEWHERE, str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    lines = done.stdout.splitlines()
    assert "404" in lines, done.stderr
    assert [line for line in lines if line.startswith("host='0.0.0.0' can be reached from other machines")], lines
