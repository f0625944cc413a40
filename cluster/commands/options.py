"""Command-line options for every field of `EngineConfig`, and configuration files that hold the
same.
"""

import argparse
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.model_folder import resolve_model
from engine.sizes import Size, parse_size

# What `--help` says of each field; `model` is the positional argument.
DESCRIPTIONS = {
    "served_model_name": "the name that clients use; default: the folder's name",
    "tokenizer": "the folder that holds tokenizer.json; default: the model's",
    "dtype": "of weights, activations and cache; auto: the checkpoint's",
    "quantization": "of weights, when loaded (embeddings and the head: int8); fp8 is for GPUs and rounds inputs",
    "load_format": "dummy: random weights, for performance work",
    "device": "where the workers compute; auto: cuda where there is one",
    "ops_backend": "which kernels; auto: the best for the device",
    "exact": "results of a request do not depend on its neighbours; no: on GPUs, cuBLAS's matrix products",
    "kv_cache_dtype": "auto: that of the weights; fp8_e4m3: half of bfloat16's, on GPUs",
    "enforce_eager": "launch each kernel of a decode step, instead of CUDA graphs (on the CPU: tapes)",
    "seed": "of dummy weights, and of offline requests that bring no seed",
    "tensor_parallel_size": "ranks that share each layer",
    "pipeline_parallel_size": "stages that the layers are dealt out to",
    "distributed_executor_backend": "auto: in process for one rank, else Ray actors",
    "max_model_len": "the context in tokens, which the cache must hold; default: the model's",
    "block_size": "tokens a cache block",
    "gpu_memory_utilization": "share of a GPU's memory to use",
    "kv_cache_memory_bytes": "cache a rank; default: the rest of the GPU, on CPU a share of 1 GiB or one sequence",
    "num_gpu_blocks_override": "cache blocks a rank, whatever there is room for",
    "num_threads": "threads a rank on CPU; default: its share of the node's cores",
    "swap_space": "GiB of host memory a rank for preempted requests",
    "enable_prefix_caching": "share the cache of equal prefixes among requests",
    "max_num_batched_tokens": "tokens a step",
    "max_num_seqs": "sequences a step",
    "long_prefill_token_threshold": "tokens of one prompt a step; 0: no limit",
    "scheduling_policy": "who is served first",
    "watermark": "share of the blocks kept free when a request is admitted",
    "max_num_queued_reqs": "requests that may wait; more get 503; default: no limit",
    "max_restarts": "times in a row that lost workers are replaced in vain before the engine gives up",
    "num_spare_workers": "warm processes per node that wait to replace a dead worker (CPU)",
    "elastic": "go on with fewer tensor-parallel ranks if a lost node is not made up for in 20 seconds",
    "log_stats": "write a line of figures to the engine's log every ten seconds",
}
_READS_SIZE = get_args(Size)[1]
SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """One option for each field but `model`; an option that is not given is absent from the
    namespace.
    """
    group = parser.add_argument_group("engine")
    for name, description in DESCRIPTIONS.items():
        field = EngineConfig.model_fields[name]
        flags = [*([SHORT[name]] if name in SHORT else []), "--" + name.replace("_", "-")]
        shown = "" if field.default is None else f" (default: {field.default})"
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
        else:
            options["type"] = kind
            options["metavar"] = {int: "N", size: "SIZE", float: "X", str: "NAME"}[kind]
        group.add_argument(*flags, **options)


def engine_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine options that were given."""
    return {name: value for name, value in vars(namespace).items() if name in DESCRIPTIONS}


def read_config_file(path: str) -> dict[str, Any]:
    """A YAML file's keys: names of options, with _ or -; raises InvalidConfig."""
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InvalidConfig(f"{path} holds {type(values).__name__}, not names of options with values")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def size(text: str) -> int:
    """A number, perhaps with a unit; raises ArgumentTypeError."""
    try:
        return int(parse_size(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _kind(field: FieldInfo) -> Any:
    """The type of a field's value, None left aside; for a `Size` what reads it."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return size if annotation == Size or _READS_SIZE in field.metadata else annotation


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a folder in Hugging Face layout")
    parser.add_argument("--config", metavar="FILE", help="a YAML file of options; those on the command line win")
    add_engine_options(parser)


def merged_options(options: argparse.Namespace, more: Iterable[str] = ()) -> dict[str, Any]:
    """The options of the configuration file, and over them those of the command line: of the
    engine, and those named `more`.
    """
    values = read_config_file(options.config) if options.config else {}
    given = vars(options)
    values |= engine_arguments(options) | {name: given[name] for name in more if name in given}
    if options.model is not None:
        values["model"] = options.model
    if isinstance(values.get("model"), str):
        values["model"] = resolve_model(values["model"])
    return values
