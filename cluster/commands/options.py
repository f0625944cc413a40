"""Command-line options for every field of `EngineConfig`, and configuration files that hold the
same.
"""

import argparse
import types
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from cluster.download.models import fetched
from engine.checkpoint.model_folder import resolve_paths
from engine.config import EngineConfig, instead_of, strict_yaml
from engine.errors import InvalidConfig
from engine.sizes import Size, parse_size

# The help text of each field; `model` is the positional argument, and `source` no option.
DESCRIPTIONS = {
    "revision": "branch, tag or commit of a model of the hub; default: main",
    "download_dir": "folder on each node that models are downloaded to; default: the hub's cache, or ~/.cache/squadron",
    "served_model_name": "the model name that clients use; default: the folder's name, or MODEL as given",
    "tokenizer": "the folder that holds tokenizer.json; default: the model's",
    "generation_config": "auto: sampling defaults from the model's generation_config.json; vllm: ignore those",
    "dtype": "type of weights, activations and cache; auto: the checkpoint's",
    "quantization": "quantize weights when loaded (embeddings and the head: int8); fp8: GPUs only, rounds inputs too",
    "load_format": "dummy: random weights, for performance work",
    "device": "device of the workers; auto: cuda if there is one",
    "ops_backend": "kernels; auto: the best for the device",
    "exact": "a request's results do not depend on other requests; --no-exact: use cuBLAS on GPUs",
    "kv_cache_dtype": "type of the cache; auto: that of the weights; fp8_e4m3: half of bfloat16's size, on GPUs",
    "enforce_eager": "launch each kernel of a step instead of replaying CUDA graphs (on the CPU: tapes)",
    "enable_lora": "let requests use low-rank adapters",
    "max_loras": "most different adapters per step",
    "max_lora_rank": "highest rank of an adapter, up to 256",
    "max_cpu_loras": "number of adapters that a rank keeps in memory; default: max_loras",
    "seed": "seed of dummy weights, and of offline requests without a seed",
    "tensor_parallel_size": "number of ranks that share each layer",
    "pipeline_parallel_size": "number of stages that the layers are divided into",
    "distributed_executor_backend": "ray: each rank an actor; local: one in this process; auto: local if on a GPU",
    "accelerator_type": "kind of GPU that workers need, by Ray's name, such as H100 or A100; default: any",
    "node_labels": 'labels that Ray\'s nodes must have to be given ranks: {"region": "eu"}; default: none',
    "max_model_len": "context length in tokens, which the cache must hold; default: the model's",
    "block_size": "tokens per cache block",
    "gpu_memory_utilization": "share of a GPU's memory to use",
    "kv_cache_memory_bytes": "cache per rank; default: the rest of the GPU; on CPU its share of 1 GiB, or one sequence",
    "num_gpu_blocks_override": "number of cache blocks per rank; default: as many as fit",
    "num_threads": "threads per rank on CPU; default: its share of the node's cores",
    "swap_space": "GiB of host memory per rank for preempted requests and cached blocks that the device evicts",
    "kv_offloading_size": "GiB of host memory of all ranks for cached blocks, in place of swap_space for each",
    "kv_offloading_path": "folder, also s3://... or gs://..., of cached blocks that outlive the engine",
    "kv_offloading_path_size": "GiB that this folder may take",
    "kv_role": "producer: answer once a prompt's blocks are in this folder; consumer: only read from it",
    "enable_prefix_caching": "share cache blocks of equal prefixes among requests",
    "max_num_batched_tokens": "most tokens per step",
    "max_num_seqs": "most sequences per step",
    "long_prefill_token_threshold": "most tokens of one prompt per step; 0: no limit",
    "max_decode_wait_ms": "about how long a step may take that computes prompts while others decode; 0: no limit",
    "scheduling_policy": "order in which requests are served",
    "watermark": "share of the blocks kept free when a request is admitted",
    "max_num_queued_reqs": "most waiting requests, each choice counted; then 503; default: max_num_seqs; 0: no limit",
    "max_num_queued_tokens": "most prompt tokens of waiting requests; default: as many as the cache holds; 0: no limit",
    "pooling_type": "embeddings: the last token's state or the mean; auto: the model's modules.json, else the last",
    "pooling_normalize": "scale embeddings to length 1; default: as the model's modules.json says, else yes",
    "max_restarts": "consecutive failed restarts of workers before the engine gives up",
    "num_spare_workers": "number of warm processes per node that wait to replace a lost worker (CPU only)",
    "speculative_config": 'guess tokens and check several per step: {"method": "ngram"} or {"model": NAME}',
    "kv_events_config": 'tell routers what is cached: {"enable_kv_cache_events": true}, over ZeroMQ',
    "elastic": "continue with fewer tensor-parallel ranks if a lost node is not replaced within 20 seconds",
    "log_stats": "log a line of statistics every ten seconds",
}
MODEL_HELP = "a folder in Hugging Face layout; ORGANISATION/MODEL of the Hugging Face hub; or s3://..., gs://..."
_READS_SIZE = get_args(Size)[1]
SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """One option for each field described; an option that is not given is absent from the
    namespace.
    """
    group = parser.add_argument_group("engine")
    for name, description in DESCRIPTIONS.items():
        field = EngineConfig.model_fields[name]
        flags = [*([SHORT[name]] if name in SHORT else []), "--" + name.replace("_", "-")]
        shown = "" if field.default is None or field.default_factory else f" (default: {field.default})"
        kind = _kind(field)
        options: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": (description + shown).replace("%", "%%"),
        }
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) is Literal:
            options["choices"] = get_args(kind)
            options["type"] = type(get_args(kind)[0])
            if options["type"] is str:
                options["type"] = partial(_word, name)
        else:
            options["type"] = kind
            options["metavar"] = {int: "N", size: "SIZE", float: "X", str: "NAME", mapping: "JSON"}[kind]
        group.add_argument(*flags, **options)


def _word(name: str, value: str) -> str:
    if (why := instead_of(name, value)) is not None:
        raise argparse.ArgumentTypeError(f"{value}: {why}")
    return value


def engine_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine options that were given."""
    return {name: value for name, value in vars(namespace).items() if name in DESCRIPTIONS}


def read_config_file(path: str) -> dict[str, Any]:
    """A YAML file's keys: names of options, with _ or -; raises InvalidConfig."""
    try:
        values = strict_yaml.load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    except (strict_yaml.Problem, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InvalidConfig(f"{path} must map names of options to values; it holds a {type(values).__name__}")
    result: dict[str, Any] = {}
    for name, value in values.items():
        key = str(name).replace("-", "_")
        if key in result:
            raise InvalidConfig(f"{path} gives {key} twice, with _ and with -; keep one of them")
        result[key] = value
    return result


def size(text: str) -> int:
    """A number with an optional unit; raises ArgumentTypeError."""
    try:
        return int(parse_size(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def mapping(text: str) -> dict[str, Any]:
    """A JSON object, or one in YAML; raises ArgumentTypeError."""
    try:
        value = strict_yaml.load(text)
    except strict_yaml.Problem as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _kind(field: FieldInfo) -> Any:
    """The type of a field's value other than None, or what reads it."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if hasattr(annotation, "model_fields") or get_origin(annotation) is dict:
        return mapping
    return size if annotation == Size or _READS_SIZE in field.metadata else annotation


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--config", metavar="FILE", help="a YAML file of options; the command line overrides it")
    add_engine_options(parser)


def fetched_config(**values: Any) -> EngineConfig:
    """The configuration, with the model fetched to this node. Raises InvalidConfig."""
    return fetched(EngineConfig.create(**values))


def merged_options(options: argparse.Namespace, more: Iterable[str] = ()) -> dict[str, Any]:
    """The options of the configuration file, overridden by those of the command line: the engine's,
    and those named in `more`.
    """
    values = read_config_file(options.config) if options.config else {}
    given = vars(options)
    values |= engine_arguments(options) | {name: given[name] for name in more if name in given}
    if options.model is not None:
        values["model"] = options.model
    return resolve_paths(values)
