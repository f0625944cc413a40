"""`squadron demo`: serves the demo checkpoint on four Ray workers of this machine, asks it a
question, and prints the answer and how to ask more.
"""

import argparse
import threading
import time

from cluster.api.edge.hosts import LOOPBACK_HOSTS
from cluster.commands.ask import ask
from cluster.launch.app import build_demonstration
from cluster.launch.machine import check_port, free_port
from cluster.launch.node.logs import KeptLogs
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import RayCluster, ray_cluster
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK

PACKAGED = ROOT / "cluster" / "models" / "demo"  # in a wheel, where setup.py puts it
MODEL = PACKAGED if PACKAGED.exists() else ROOT / "configs" / "demo"
ENGINE = {
    "model": str(MODEL),
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "kv_cache_memory_bytes": 64 << 20,
}
QUESTION = "What are the three promises of Squadron?"
FIRST_PORT, LAST_PORT = 8000, 8099


def run(*, once: bool, port: int | None) -> None:
    """Serve and ask; ends after the answer if `once`, else with KeyboardInterrupt. Raises
    InvalidConfig.
    """
    progress = _Progress()
    if port is None:
        port = free_port(LOOPBACK, FIRST_PORT, LAST_PORT)
    else:
        check_port(LOOPBACK, port)
    progress.tell("Starting Ray on this machine")
    with ray_cluster(num_workers=4, kept_logs=KeptLogs()) as ray:
        progress.tell("Starting Ray Serve, a gateway, an engine and 4 workers (TP=2 × PP=2, on CPU)")
        application = build_demonstration({"engine": ENGINE, "allowed_hosts": LOOPBACK_HOSTS})
        with serving(application, host=LOOPBACK, port=port) as server:
            progress.tell(server.ingress.report)
            progress.tell(f"Ready. Asking: {QUESTION}")
            print("\n  ", end="", flush=True)
            for number, text in enumerate(ask(port, MODEL.name, QUESTION)):
                if number == 0:
                    first = progress.seconds
                print(text, end="", flush=True)
            print("\n", flush=True)
            progress.tell(f"Answered; the first token came {first:.1f} s after the start")
            if not once:
                print(_more(port, ray), flush=True)
                threading.Event().wait()


class _Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def tell(self, text: str) -> None:
        print(f"[{self.seconds:5.1f} s] {text}", flush=True)


def _more(port: int, ray: RayCluster) -> str:
    environment = " ".join(f"{name}={value}" for name, value in ray.environment.items())
    return f"""Ask more on the page, which shows the engine, too, and can kill a worker:

  http://{LOOPBACK}:{port}/

or from a shell:

  curl http://{LOOPBACK}:{port}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{MODEL.name}", "messages": [{{"role": "user", "content": "Spell the word \\"lantern\\"."}}]}}'

or from Python:

  from openai import OpenAI
  client = OpenAI(base_url="http://{LOOPBACK}:{port}/v1", api_key="none")
  messages = [{{"role": "user", "content": "Count from 3 to 9."}}]
  print(client.chat.completions.create(model="{MODEL.name}", messages=messages).choices[0].message.content)

or from another Ray job, which needs no package of ours, under {environment}:

  import ray
  from ray import serve
  ray.init("{ray.address}")
  request = {{"messages": [{{"role": "user", "content": "What is 2 + 2?"}}]}}
  print(serve.get_app_handle("squadron").chat.remote(request).result()["outputs"][0]["text"])

Ctrl-C ends it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda options: run(once=options.once, port=options.port))
    parser.add_argument("--once", action="store_true", help="exit after the first answer")
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port to listen on; default: 8000 or the next free one"
    )
