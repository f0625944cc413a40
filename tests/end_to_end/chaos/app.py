"""A real application to be harmed: Ray, Serve, gateways, engines and workers, below this
process.
"""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ray import serve

from cluster.ingress.choice import DEFAULT_WISH, Wish
from cluster.launch.app import build_app
from cluster.launch.packages import ROOT
from cluster.launch.ray_cluster import RayCluster, ray_cluster
from cluster.launch.serving import serving
from cluster.sockets import LOOPBACK
from tests.adapters import demo_shapes, save_adapter
from tests.end_to_end.conftest import free_port
from tests.engine.support.able import able_tokenizer

DEMO = ROOT / "configs" / "demo"
FOUR_RANKS = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
ANY_QUEUE = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}  # where nothing is to be refused
MANY = 1000  # restarts and attempts: what is measured is what a fault does, not how many are borne


@dataclass(frozen=True, slots=True)
class App:
    url: str
    args: dict[str, Any]  # of build_app
    ray: RayCluster

    def stats(self) -> list[dict[str, Any]]:
        """Each engine replica's `EngineStats`."""
        engines = serve.get_deployment_handle("EngineDeployment", "squadron")
        return list(engines.broadcast("stats").results(timeout_s=30))

    def drafts(self) -> dict[str, float]:
        """What metrics tell of them, of all engines; by position summed."""
        told: dict[str, float] = defaultdict(float)
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            name, _, rest = line.partition("{")
            if name.startswith("vllm:spec_decode_num_") and 'engine="all"' in rest:
                told[name.removeprefix("vllm:spec_decode_num_")] += float(rest.rpartition(" ")[2])
        return told


def app_args(
    engine: dict[str, Any], *, recovers: bool, num_models: int = 1, num_engines: int = 1, **more: Any
) -> dict[str, Any]:
    """For build_app: the demo checkpoint, which thinks and judges, and an adapter of it.
    `recovers`: with no restart and one attempt a fault costs what it costs. `num_models`: the
    others are the same checkpoint quantized, without adapters. `num_engines`: of each model.
    """
    given = {"model": str(DEMO), "tokenizer": able_tokenizer(), "device": "cpu", "kv_cache_memory_bytes": 64 << 20}
    given = given | {"max_restarts": MANY if recovers else 0} | engine
    adapted = {"lora_modules": [f"harbour={adapter_folder()}"], "num_engines": num_engines}
    first = {"engine": given | {"enable_lora": True}} | adapted
    args = {"max_attempts": MANY if recovers else 1} | more
    if num_models == 1:
        return first | args
    others = [given | {"quantization": "int8", "served_model_name": f"demo-{n}"} for n in range(2, num_models + 1)]
    return {"models": [first, *({"engine": other, "num_engines": num_engines} for other in others)]} | args


@functools.cache
def adapter_folder() -> str:
    """An adapter, which is removed as this process ends."""
    folder = tempfile.mkdtemp(prefix="harbour-")
    atexit.register(shutil.rmtree, folder)
    save_adapter(Path(folder), demo_shapes(), rank=8, seed=1)
    return folder


@contextlib.contextmanager
def running(args: dict[str, Any], ingress: Wish = DEFAULT_WISH) -> Iterator[App]:
    """The application, ready, on a Ray of this machine alone; `ingress`: what listens."""
    port = free_port()
    with (
        ray_cluster(num_workers=sum(_room(model) for model in args.get("models", [args]))) as ray,
        serving(build_app(args), host=LOOPBACK, port=port, ends_serve=True, ingress=ingress),
    ):
        yield App(f"http://{LOOPBACK}:{port}", args, ray)


def _room(model: dict[str, Any]) -> int:
    """Of Ray's, in processes, with one engine more: a replica is replaced before the dead one's
    resources are given back.
    """
    engine = model["engine"]
    ranks = engine.get("tensor_parallel_size", 1) * engine.get("pipeline_parallel_size", 1)
    return (model.get("num_engines", 1) + model.get("num_prefill_engines", 0) + 1) * (int(ranks) + 1)


@contextlib.contextmanager
def injected(folder: Path) -> Iterator[None]:
    """Processes that start meanwhile import the folder's `sitecustomize`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
