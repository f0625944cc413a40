"""Imports point down: who may import whom, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for name in ("cluster", "engine", "ops", "parallel") for path in (ROOT / name).rglob("*.py"))

# What a folder may import of ours; the longest prefix of a file's path counts.
OURS = {
    "ops": ("ops",),
    "parallel": ("parallel", "ops"),
    "engine": ("engine",),
    "engine/worker": ("engine", "parallel", "ops"),
    "parallel/spec": ("parallel.spec", "parallel.errors"),
    "cluster": ("cluster", "engine", "parallel.spec", "parallel.errors"),
}
# The rooms of a folder, and those below each; what lies in none is for all, and imports none.
ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "engine": {
        "text": (),
        "grammars": ("text",),  # what may be sampled next, for whoever has a sequence
        "kv_events": (),  # what routers are told of the cache
        "offload": (),  # blocks of a cache as files: ranks write and read them, the driver bounds them
        "scheduling": ("grammars", "kv_events", "offload", "text"),
        "records": ("scheduling",),
        "output": ("scheduling", "text"),
        "checkpoint": (),
        "worker": ("checkpoint", "offload"),  # what a rank is given it reads itself: weights, and their manifest
        "batch": ("grammars", "scheduling"),
        "recovery": ("records", "scheduling"),
        "admission": (
            *("batch", "checkpoint", "grammars", "kv_events", "offload", "output"),
            *("records", "recovery", "scheduling"),
        ),
        "core": (
            *("admission", "batch", "checkpoint", "grammars", "output", "records"),
            *("recovery", "scheduling", "text"),
        ),
        "frontend": ("admission", "checkpoint", "core", "records", "text"),
    },
    "cluster": {
        "metrics": (),  # names and sums: what is counted anywhere is counted in their terms
        "page": (),
        "api": ("metrics", "page"),
        "checkpoint": (),
        "download": ("checkpoint",),  # models by name: whoever reads a folder first asks where it is
        "telemetry": (),
        "weights": ("checkpoint",),  # that take the place of a model's while it is served
        "workers": ("checkpoint", "download"),
        "replica": ("download", "telemetry", "weights", "workers"),
        "gateway": ("api", "checkpoint", "metrics", "replica", "telemetry", "weights", "workers"),
        "batch": ("api",),  # a client of applications, by their handles or by HTTP
        "ingress": ("api",),
        "launch": (
            *("api", "checkpoint", "download", "gateway", "ingress", "replica", "telemetry", "weights", "workers"),
        ),
        "doctor": ("checkpoint", "download", "ingress", "launch", "workers"),
        "offline": ("checkpoint", "download", "launch", "weights", "workers"),
        "llm": ("offline",),
        "commands": (
            *("api", "batch", "checkpoint", "doctor", "download", "ingress", "launch", "llm", "replica", "workers"),
        ),
        "bench": ("commands", "download", "llm"),
        "chaos": ("commands",),
        "cli": ("bench", "chaos", "commands"),
    },
    "cluster/workers": {
        "steps": (),
        "processes": ("steps",),
        "group": ("processes", "steps"),
        "supply": ("processes",),
        "ray_executor": ("group", "processes", "supply"),
        "executor": ("ray_executor",),
    },
    "cluster/replica": {
        "refusals": (),
        "delta_channel": ("refusals",),  # also the gateway's end of it
        "calls": ("delta_channel", "refusals"),
        "condition": ("delta_channel", "refusals"),
        "running": ("delta_channel",),
        "threads": ("refusals",),
        "requests": ("condition", "delta_channel", "refusals", "running", "threads"),
        "changes": ("condition", "refusals"),  # what trainers do
        "replica": ("changes", "condition", "requests", "threads"),
        "departure": ("calls",),  # it holds its replica by a call to itself
        "life": ("departure", "replica"),
        "deployment": ("delta_channel", "life", "refusals", "replica"),
    },
    "cluster/gateway": {
        "requests": (),
        "engines": ("requests",),
        "streams": (),
        "monitoring": ("requests",),
        "door": ("requests",),
        "prefill": ("engines", "options", "requests"),
        "answering": ("engines", "monitoring", "prefill", "requests"),
        "gateway": ("answering", "door", "engines", "monitoring", "requests"),
        "handle": ("engines", "gateway"),
        "ask": (),
        "demonstration": ("models",),
        "http": ("ask", "gateway"),
        "options": (),
        "stores": ("options", "streams"),
        "adapters": (),
        "models": ("adapters", "engines", "gateway", "monitoring", "options", "prefill"),
        "parts": ("demonstration", "http", "models", "options", "prefill", "stores"),
        "deployment": ("handle", "options", "parts"),
    },
    "cluster/api": {
        "models": (),
        "keys": (),  # asked at the edge, and owners of requests
        "connection": (),
        "edge": ("connection", "keys", "models"),
        "requests": ("connection", "keys", "models"),
        "responses": ("connection", "models", "requests"),
        "dialects": ("models", "requests", "responses"),  # other APIs, by way of chat's requests and deltas
        "routes": ("connection", "dialects", "keys", "models", "requests", "responses"),
        "options": ("edge", "keys"),
        "front": ("connection", "edge", "keys", "options", "requests"),
        "app": ("dialects", "edge", "front", "models", "options", "requests", "responses", "routes"),
        "proxy": ("connection", "edge", "front"),
    },
}
# Where torch would cost the driver seconds and memory: it plans from these.
WITHOUT_TORCH = ("parallel/spec", "parallel/errors.py", "parallel/__init__.py")
COLLECTIVES = tuple(
    f"parallel/groups/{name}.py" for name in ("connect", "meeting", "symmetric", "torch_group", "torch_join")
)
# Packages that only these folders or files may import.
THEIRS = {
    "torch": ("engine/worker", "parallel", "ops"),
    **dict.fromkeys(("torch.distributed", "torch._C"), COLLECTIVES),
    "safetensors": ("parallel",),
    "triton": ("ops",),
    "transformers": ("engine/text/tokenizer.py",),
    **dict.fromkeys(("ray", "fastapi", "starlette", "uvicorn"), ("cluster",)),
    # Imported only where spans are sent.
    "huggingface_hub": ("cluster/download/hub.py",),
    "fsspec": ("cluster/download/object_store.py", "engine/offload/block_files.py"),
    "zmq": ("engine/kv_events/zmq_publisher.py",),  # imported only where events are published
    "pyarrow": ("cluster/batch",),
    "opentelemetry": ("cluster/telemetry/otlp.py", "cluster/telemetry/otlp_provider.py"),
}

# Who may call torch.cuda: the rest asks a `Device`, or a backend.
CALLS_CUDA = ("engine/worker/device/cuda.py", "parallel/groups/connect.py", "parallel/groups/symmetric.py", "ops")
# Who may tell devices apart by the name of one.
NAMES_CUDA = (*CALLS_CUDA, "engine/config/fields.py", "engine/worker/device/pick.py", "parallel/groups", "cluster")


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names; of `from a import b` both a and a.b, b being perhaps a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, places: tuple[str, ...], separator: str) -> bool:
    return any(name == place or name.startswith(place + separator) for place in places)


def is_above(name: str, path: str) -> bool:
    """Whether a module lies in a room that is not below that of the file."""
    for folder, rooms in ROOMS.items():
        within = folder.replace("/", ".") + "."
        if path.startswith(f"{folder}/") and name.startswith(within):
            room = path.removeprefix(f"{folder}/").split("/")[0].removesuffix(".py")
            other = name.removeprefix(within).split(".")[0]
            if other in rooms and other != room and other not in rooms.get(room, ()):
                return True
    return False


def breaches(path: str, source: str) -> list[str]:
    tree = ast.parse(source)
    home = max((folder for folder in OURS if is_in(path, (folder,), "/")), key=len)
    found = []
    for name in imported(tree):
        if name.startswith("."):
            found.append(f"{name}: relative")
        elif is_in(name, tuple(OURS), ".") and not is_in(name, OURS[home], "."):
            found.append(f"{name}: not below {home}")
        elif is_above(name, path):
            found.append(f"{name}: not in a room below that of {path}")
        elif home == "engine" and is_in(name, ("engine.worker",), "."):
            found.append(f"{name}: above engine")
        if is_in(name, ("torch.cuda",), ".") and not is_in(path, CALLS_CUDA, "/"):
            found.append(f"{name}: only {CALLS_CUDA}")
        found += [
            f"{name}: only {places}"
            for package, places in THEIRS.items()
            if is_in(name, (package,), ".") and not is_in(path, places, "/")
        ]
        if is_in(name, ("torch",), ".") and is_in(path, WITHOUT_TORCH, "/"):
            found.append(f"{name}: the driver reads {path}, and has no torch")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += [f"line {inner.lineno}: import in a function" for inner in ast.walk(node) if is_import(inner)]
        elif isinstance(node, ast.Name | ast.Attribute) and "TYPE_CHECKING" in ast.unparse(node):
            found.append(f"line {node.lineno}: TYPE_CHECKING")
        elif is_cuda(node) and not is_in(path, CALLS_CUDA, "/"):
            found.append(f"line {node.lineno}: torch.cuda, which only {CALLS_CUDA} call")
        elif isinstance(node, ast.Constant) and node.value == "cuda" and not is_in(path, NAMES_CUDA, "/"):
            found.append(f'line {node.lineno}: "cuda": a type of device')
    return found


def is_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda"


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_imports_point_down() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    assert {path: found for path, source in sources.items() if (found := breaches(path, source))} == {}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/scheduling/scheduler.py", "import torch"),
        ("engine/scheduling/scheduler.py", "from engine.records.recorder import Recorder"),
        ("engine/config/engine.py", "from engine.text.tokenizer import Tokenizer"),
        ("engine/scheduling/scheduler.py", "import numpy, ray.serve"),
        ("engine/scheduling/scheduler.py", "from engine.worker.worker import Worker"),
        ("engine/scheduling/scheduler.py", "from engine import worker"),
        ("engine/scheduling/scheduler.py", "from ops import tree"),
        ("engine/text/detokenizer.py", "from transformers import AutoTokenizer"),
        ("engine/worker/worker.py", "from cluster.workers.processes.actor import WorkerActor"),
        ("engine/worker/worker.py", "import torch.distributed as dist"),
        ("parallel/linear.py", "from torch import distributed"),
        ("parallel/groups/group.py", "from torch._C._distributed_c10d import Store"),
        ("parallel/linear.py", "from engine.step import ExecuteModelRequest"),
        ("parallel/linear.py", "import triton"),
        ("ops/interface.py", "from parallel.groups.group import Group"),
        ("ops/interface.py", "from . import tree"),
        ("cluster/workers/processes/actor.py", "from parallel.decoder import Decoder"),
        ("parallel/spec/read.py", "import torch"),
        ("cluster/workers/processes/pool.py", "from cluster.replica.deployment import EngineDeployment"),
        ("cluster/replica/deployment.py", "from cluster import gateway"),
        ("cluster/progress.py", "from cluster.api.errors import ApiError"),
        ("cluster/gateway/requests/journals.py", "from cluster.gateway.gateway import Gateway"),
        ("cluster/replica/delta_channel/messages.py", "from cluster.replica.condition import Condition"),
        ("cluster/api/requests/call.py", "from cluster.api.responses.generation import run"),
        ("cluster/api/errors.py", "from cluster.api import edge"),
        ("parallel/spec/read.py", "from parallel.rotary import cos_sin_table"),
        ("engine/worker/pending.py", "import torch\nevent = torch.cuda.Event()"),
        ("engine/worker/pending.py", "from torch.cuda import Event"),
        ("engine/worker/pending.py", "from torch import cuda"),
        ("engine/worker/pending.py", "def is_on_gpu(device):\n    return device.type == 'cuda'"),
        ("parallel/linear.py", "import torch\nif torch.cuda.is_available():\n    pass"),
        ("cluster/workers/processes/actor.py", "def start():\n    import ray"),
        ("cluster/workers/processes/actor.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass"),
    ],
)
def test_a_breach_is_seen(path: str, source: str) -> None:
    assert breaches(path, source)


def test_what_is_allowed_is_not_a_breach() -> None:
    assert not breaches(
        "engine/worker/worker.py", "import torch\nfrom parallel.decoder import Decoder\nimport engine.step"
    )
    assert not breaches("engine/text/tokenizer.py", "from transformers import AutoTokenizer\nimport enginelike, rayon")
    assert not breaches(
        "parallel/groups/torch_group.py", "import torch.distributed as dist\nfrom ops.tree import add_tree"
    )
    assert not breaches("engine/worker/device/cuda.py", "import torch\nevent = torch.cuda.Event()\nname = 'cuda'")
    assert not breaches("cluster/workers/processes/actor.py", "import ray\nfrom engine.worker.worker import Worker")
