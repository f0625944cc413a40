"""What a checkpoint must hold: one check for the driver and for workers; and in which files a stage
finds its own.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from parallel.spec import read
from parallel.spec.published.read import read_scheme
from parallel.spec.stored import BODY, complaint, files_of_stages
from tests.parallel.spec.configs import hf_config


class Tensor(NamedTuple):
    path: Path
    shape: tuple[int, ...]
    dtype: str


FOLDER, FILE = Path("model"), Path("model/model.safetensors")
SHAPES = {"a": (2, 3), "b": (4,)}
WHOLE = {"a": Tensor(FILE, (2, 3), "BF16"), "b": Tensor(FILE, (4,), "BF16")}


@pytest.mark.parametrize(
    ("tensors", "wrong"),
    [
        (WHOLE, None),
        (WHOLE | {"c": Tensor(FILE, (1,), "I64")}, None),
        (WHOLE | {"b": Tensor(FILE, (4,), "F32")}, None),
        (WHOLE | {"d": WHOLE["b"]}, f"{FILE}: the model has no tensor d"),
        (WHOLE | {"b": Tensor(FILE, (5,), "BF16")}, f"{FILE}: b has shape [5], not [4]"),
        (WHOLE | {"b": Tensor(FILE, (4,), "I64")}, f"{FILE}: b is I64; weights may be F32, F16, BF16"),
        ({"a": WHOLE["a"]}, f"{FOLDER}: tensor b is in none of the safetensors files"),
        (WHOLE | {"b": Tensor(FILE, (4,), "F16")}, f"{FILE}: b is F16, and 1 other tensors are BF16"),
    ],
)
def test_complaints_name_file_and_tensor(tensors: dict[str, Tensor], wrong: str | None) -> None:
    assert complaint(FOLDER, tensors, SHAPES, {"c"}) == wrong


def test_a_quantized_linears_scales_and_bias_are_of_the_type_that_its_packer_likes() -> None:
    """GPTQModel writes them in float16 beside norms in bfloat16."""
    scheme = read_scheme({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})
    assert scheme is not None
    linear, norm = "model.layers.0.self_attn.q_proj", "model.norm.weight"
    forms = scheme.forms({f"{linear}.weight": (128, 128), f"{linear}.bias": (128,), norm: (128,)})
    tensors = {name: Tensor(FILE, form.shape, form.dtypes[-1]) for name, form in forms.items()}
    assert tensors[norm].dtype == "BF16"
    ours = {name: tensors[name]._replace(dtype="F16") for name in (f"{linear}.bias", f"{linear}.scales")}
    assert complaint(FOLDER, tensors | ours, forms, set()) is None
    embeddings = {"model.embed_tokens.weight": (300, 128)}
    mixed = tensors | {name: Tensor(FILE, shape, "F16") for name, shape in embeddings.items()}
    wrong = complaint(FOLDER, mixed, forms | scheme.forms(embeddings), set())
    assert wrong is not None and "is F16, and 1 other tensors are BF16" in wrong


def test_tensors_that_are_elsewhere_need_not_be_here() -> None:
    assert complaint(FOLDER, {"a": WHOLE["a"]}, SHAPES, set(), {"b"}) is None


@pytest.mark.parametrize(("is_tied", "is_bare"), [(False, False), (True, False), (True, True)])
def test_each_stage_has_files_and_all_have_all(is_tied: bool, is_bare: bool) -> None:
    """A file of one tensor each, and one that nobody reads."""
    config = read(hf_config(tie_word_embeddings=is_tied))
    names = [*config.shapes(), "model.layers.0.self_attn.rotary_emb.inv_freq"]
    weight_map = {name.removeprefix(BODY) if is_bare else name: name for name in names}
    num_stages = config.num_layers
    found = [files_of_stages(weight_map, config, {stage}, num_stages) for stage in range(num_stages)]
    for stage, files in enumerate(found):
        layers = {name for name in files if name.startswith("model.layers.")}
        assert layers == {name for name in names if name.startswith(f"model.layers.{stage}.")}
    first, last = ({name for name in files if "layers" not in name} for files in (found[0], found[-1]))
    assert first == {"model.embed_tokens.weight"}
    assert last == {"model.norm.weight", "model.embed_tokens.weight" if is_tied else "lm_head.weight"}
    assert files_of_stages(weight_map, config, set(range(num_stages)), num_stages) == set(names)
