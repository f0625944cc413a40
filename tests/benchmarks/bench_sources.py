"""How long each phase of a start takes, by where the model comes from: `python -m
tests.benchmarks.bench_sources`.

Random bf16 weights of Qwen2.5-0.5B's shape: from a folder, from a hub and from an object store,
which are servers in this process, so that the network is this machine's. "again" is a start on a
node that has the model already. Every start is a process of its own.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from moto.server import ThreadedMotoServer

from cluster.download.models import fetched, outlined, pinned
from cluster.progress import progress
from engine.config import EngineConfig
from engine.worker.worker import Worker
from tests.benchmarks.folders import SHAPE, cached_folder
from tests.cluster.download.hub_server import small_hub

NAME, BUCKET = "squadron/model", "models"
PHASES = ("resolve", "outline", "fetch", "load")
Phases = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default=SHAPE, help=f"shape, or demo (default: {SHAPE})")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)  # a model and a folder: fetch and load it here
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    folder = cached_folder(options.model)
    size = (Path(folder) / "model.safetensors").stat().st_size
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the store's, of each request
    print(f"{size >> 20} MiB of weights; medians of {options.repeats}, in seconds\n")
    print(f"{'':24}" + "".join(f"{phase:>9}" for phase in (*PHASES, "sum")))
    with hub(folder) as of_hub, store(folder) as of_store:
        for title, (model, environment) in {"folder": (folder, {}), "hub": of_hub, "store": of_store}.items():
            runs = [starts(model, environment) for _ in progress(iterable=range(options.repeats), desc=title)]
            report(title, [first for first, _ in runs])
            if model != folder:
                report(f"{title}, again", [again for _, again in runs])


def report(title: str, runs: list[Phases]) -> None:
    medians = [statistics.median(run[phase] for run in runs) for phase in PHASES]
    print(f"{title:24}" + "".join(f"{seconds:9.2f}" for seconds in (*medians, sum(medians))), flush=True)


def starts(model: str, environment: dict[str, str]) -> tuple[Phases, Phases]:
    """On a node that does not have the model, and on the same one again."""
    with TemporaryDirectory() as node:
        command = [sys.executable, "-m", "tests.benchmarks.bench_sources", "--measure", model, node]
        runs = [
            subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True)
            for _ in range(2)
        ]
    first, again = (json.loads(run.stdout.splitlines()[-1]) for run in runs)
    return first, again


def measure(model: str, node: str) -> Phases:
    source = {} if Path(model).is_dir() else {"download_dir": node}
    config = EngineConfig.create(
        model=model, dtype="bfloat16", device="cpu", swap_space=0, kv_cache_memory_bytes=64 << 20, **source
    )
    seconds: Phases = {}
    for phase, step in zip(PHASES, (pinned, outlined, fetched), strict=False):
        started = time.perf_counter()
        config = step(config)
        seconds[phase] = time.perf_counter() - started
    started = time.perf_counter()
    Worker(config)
    return seconds | {"load": time.perf_counter() - started}


@contextmanager
def hub(folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A model's name, and the environment in which it means this folder's."""
    with small_hub() as server:
        server.add(NAME, Path(folder))
        yield NAME, {"HF_ENDPOINT": server.url}


@contextmanager
def store(folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The same of a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        access = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        access |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        client = boto3.client(
            "s3",
            endpoint_url=access["AWS_ENDPOINT_URL"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        for path in Path(folder).iterdir():
            client.put_object(Bucket=BUCKET, Key=f"model/{path.name}", Body=path.read_bytes())
        yield f"s3://{BUCKET}/model", access
    finally:
        server.stop()


if __name__ == "__main__":
    main()
