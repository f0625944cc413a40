"""Adapters that a server is started with: read and checked before anything starts."""

from collections.abc import Iterable
from pathlib import Path

from cluster.checkpoint.files import StoredTensor, read_header
from cluster.checkpoint.spec import read_spec
from cluster.checkpoint.values import is_finite
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.errors import InvalidConfig, naming
from engine.request import Adapter
from parallel.errors import InvalidAdapter
from parallel.spec.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig, digest, pairs
from parallel.spec.decoder import DecoderConfig

DTYPES = ("F32", "F16", "BF16")
PICKLE_FILE = "adapter_model.bin"  # that older versions of PEFT wrote


def read_adapters(modules: Iterable[str], config: EngineConfig) -> tuple[Adapter, ...]:
    """Of `NAME=FOLDER` each. Raises InvalidConfig."""
    named = [_named(module) for module in modules]
    if not named:
        return ()
    spec = check_has_adapters("lora_modules", config)
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1 or name == config.model_name:
            raise InvalidConfig(f"lora_modules: the name {name} is another model's already")
    return tuple(read_adapter(name, folder, spec, config.max_lora_rank) for name, folder in named)


def check_has_adapters(option: str, config: EngineConfig) -> DecoderConfig:
    """The model that they are of. Raises InvalidConfig if none are computed; `option` asks for
    them.
    """
    if not config.enable_lora:
        raise InvalidConfig(f"{option} are given, and enable_lora is not")
    return read_spec(ModelConfig.load(config.model), config.model)


def read_adapter(name: str, folder: Path, model: DecoderConfig, max_rank: int) -> Adapter:
    """Raises InvalidConfig naming the file, and the tensor if there is one."""
    try:
        with naming(f"adapter {name}"):
            shapes, stored = _shapes(folder)
        config = (folder / CONFIG_FILE).read_bytes()
        found = pairs(AdapterConfig.parse(config, str(folder / CONFIG_FILE)), shapes, model)
        rank = max(shapes[pair.down][0] for pair in found.values())
        if rank > max_rank:
            raise InvalidConfig(f"adapter {name} has rank {rank}, and max_lora_rank is {max_rank}; raise it to {rank}")
        weights = (folder / WEIGHTS_FILE).read_bytes()  # of known tensors, so not of any size
    except OSError as error:
        raise InvalidConfig(
            f"adapter {name}: {error.filename} cannot be read: {error.strerror}{_instead(folder)}"
        ) from None
    except InvalidAdapter as error:
        raise InvalidConfig(f"adapter {name}: {error}") from None
    for tensor, each in stored.items():
        _check_numbers(f"adapter {name}: {folder / WEIGHTS_FILE}: tensor {tensor}", each, weights)
    return Adapter(name, str(folder), digest(config, weights), rank)


def _shapes(folder: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, StoredTensor]]:
    """Raises OSError, InvalidConfig."""
    stored = read_header(folder / WEIGHTS_FILE)
    return {tensor: each.shape for tensor, each in stored.items()}, stored


def _instead(folder: Path) -> str:
    """What is there in place of weights that are read, and what to do; nothing if none is."""
    if (folder / WEIGHTS_FILE).exists() or not (folder / PICKLE_FILE).exists():
        return ""
    return (
        f"; {PICKLE_FILE} is a pickle, which could run code and is not read: have PEFT write {WEIGHTS_FILE} of it "
        "(PeftModel.from_pretrained, then save_pretrained)"
    )


def _named(module: str) -> tuple[str, Path]:
    name, equals, folder = module.partition("=")
    if not (name and equals and folder):
        raise InvalidConfig(f"lora_modules={module!r}: an adapter is given as NAME=FOLDER")
    return name, Path(folder).resolve()


def _check_numbers(what: str, stored: StoredTensor, data: bytes) -> None:
    if stored.dtype not in DTYPES:
        raise InvalidConfig(f"{what} is {stored.dtype}; adapters may be {', '.join(DTYPES)}")
    if not is_finite(data[stored.start : stored.stop], stored.dtype):
        raise InvalidConfig(f"{what} holds NaN or infinity")
