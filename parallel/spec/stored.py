"""What a checkpoint must hold for a model: the driver checks it before anything starts, and each
worker when it reads.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol, TypeGuard, TypeVar

from parallel.errors import InvalidCheckpoint
from parallel.spec.decoder import EMBEDDING, DecoderConfig
from parallel.spec.published.contradiction import FORMATS, contradiction
from parallel.spec.published.scheme import Form, Shape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BODY = "model."
EXPERTS = ".mlp.experts."  # in the names of tensors of which each is read by one rank of a stage
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # by safetensors' names
DTYPE_BYTES = FLOAT_BYTES | {"I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1}
GIVEN_DTYPES = ("float32", "bfloat16", "float16")  # by torch's names
Forms = Mapping[str, Form] | Mapping[str, Shape]  # a shape alone: of floating point

Tensor = TypeVar("Tensor")


class Stored(Protocol):
    """A tensor as its file's header describes it."""

    @property
    def path(self) -> Path: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


def is_file_name(name: object) -> TypeGuard[str]:
    """Whether an index may name it: a file of its own folder."""
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..")


def as_the_model_names(tensors: Mapping[str, Tensor], others: Set[str] = frozenset()) -> dict[str, Tensor]:
    """Tensors by the model's names, of tensors by those that are stored: a model that was saved
    without its head, as Qwen3-Embedding's are, lacks `model.` in front of all. `others`: stored
    names of the same checkpoint.
    """
    bare = EMBEDDING.removeprefix(BODY) + ".weight"
    if bare not in tensors and bare not in others:
        return dict(tensors)
    return {BODY + name: tensor for name, tensor in tensors.items()}


def files_of_stages(
    weight_map: Mapping[str, str], config: DecoderConfig, stages: Set[int], pp_size: int
) -> frozenset[str]:
    """The files that hold what ranks of these stages read, of an index that says which file each
    tensor is in. What no stage reads is the first one's, so that all stages have all files.
    """
    by_name = as_the_model_names(weight_map)
    of_stage = [
        {file for name, file in by_name.items() if name.startswith(own)} for own in config.stage_prefixes(pp_size)
    ]
    of_stage[0] |= set(weight_map.values()).difference(*of_stage)
    return frozenset().union(*[of_stage[stage] for stage in stages])


def complaint(
    folder: Path, tensors: Mapping[str, Stored], forms: Forms, unused: Set[str], elsewhere: Set[str] = frozenset()
) -> str | None:
    """What is wrong, naming file and tensor; None if exactly the tensors of `forms` exist. Those of
    `unused` may exist too, and those that are `elsewhere` need not.
    """
    for name, tensor in tensors.items():
        if name not in unused and (wrong := _wrong(name, tensor, forms)) is not None:
            return wrong
    for name in forms:
        if name not in tensors and name not in elsewhere:
            return f"{folder}: tensor {name} is in none of the safetensors files"
    weights = {name: tensor for name, tensor in tensors.items() if name in forms}
    return _mixed_halves({name: tensor for name, tensor in weights.items() if not _is_of_packer(name, forms)})


def _wrong(name: str, tensor: Stored, forms: Forms) -> str | None:
    form = forms.get(name)
    if form is None:
        if (why := _contradiction(name, tensor, forms)) is not None:
            return f"{tensor.path}: {name} {why}"
        return f"{tensor.path}: the model has no tensor {name}"
    if not isinstance(form, Form):
        form = Form(form)
    if tensor.shape != form.shape and tensor.shape not in form.others:
        return f"{tensor.path}: {name} has shape {list(tensor.shape)}, not {list(form.shape)}"
    if tensor.dtype not in form.dtypes:
        if (why := _contradiction(name, tensor, forms)) is not None:
            return f"{tensor.path}: {name} {why}"
        return f"{tensor.path}: {name} is {tensor.dtype}; weights may be {', '.join(form.dtypes)}"
    return None


def _contradiction(name: str, tensor: Stored, forms: Forms) -> str | None:
    quantizes = any(each.rpartition(".")[2] in FORMATS for each in forms)
    return contradiction(name, tensor.dtype, forms.keys(), quantizes)


def _is_of_packer(name: str, forms: Forms) -> bool:
    """A scale of a quantized weight, or the bias that is packed with it: in whatever float type its
    packer likes. GPTQModel's biases are float16 beside bfloat16 norms.
    """
    linear, _, part = name.rpartition(".")
    if part == "bias":
        return f"{linear}.qweight" in forms
    return part in ("scales", "weight_scale", "weight_scale_inv", "input_scale")


def _mixed_halves(tensors: Mapping[str, Stored]) -> str | None:
    """What is wrong if there are bf16 and fp16: mixing them is a mistake, and one read as the other
    gives finite but wrong numbers.
    """
    halves = {kind: [name for name, tensor in tensors.items() if tensor.dtype == kind] for kind in ("F16", "BF16")}
    rare, usual = sorted(halves, key=lambda kind: len(halves[kind]))
    if not halves[rare]:
        return None
    name = halves[rare][0]
    return f"{tensors[name].path}: {name} is {rare}, and {len(halves[usual])} other tensors are {usual}"


def refuse_published(config: DecoderConfig) -> None:
    """Raises InvalidCheckpoint for a model whose linears are stored as codes, where whole tensors
    are given.
    """
    if config.scheme is not None:
        raise InvalidCheckpoint(
            f"the checkpoint is quantized ({config.scheme.name}), and its weights change by a folder of the same form"
        )


def check_names(names: Set[str], shapes: Mapping[str, Shape], unused: Set[str]) -> None:
    """Of whole tensors that are given, by the model's names: exactly those of `shapes`, and perhaps
    of `unused`. Raises InvalidCheckpoint naming the tensor.
    """
    for name in sorted(names - shapes.keys() - unused):
        raise InvalidCheckpoint(f"the model has no tensor {name}")
    for name, shape in shapes.items():
        if name not in names:
            raise InvalidCheckpoint(f"tensor {name}, of shape {list(shape)}, is missing")


def check_form(name: str, shape: Sequence[int], dtype: str, wanted: Shape) -> None:
    """Of one that is given. `dtype`: torch's name; `wanted`: a shape. Raises InvalidCheckpoint."""
    if tuple(shape) != tuple(wanted):
        raise InvalidCheckpoint(f"tensor {name} has shape {list(shape)}, not {list(wanted)}")
    if dtype not in GIVEN_DTYPES:
        raise InvalidCheckpoint(f"tensor {name} is {dtype}; weights may be {', '.join(GIVEN_DTYPES)}")
