import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.checkpoint.adapters import read_adapters
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.request import Adapter
from parallel.spec.adapter import CONFIG_FILE, WEIGHTS_FILE
from tests.adapters import demo_shapes, save_adapter
from tests.engine.support.workloads import DEMO

SHAPES = demo_shapes()
CONFIG = EngineConfig.create(model=DEMO, enable_lora=True, max_lora_rank=16)


@pytest.fixture
def saved(tmp_path: Path) -> Adapter:
    return save_adapter(tmp_path / "harbour", SHAPES, rank=8, dtype=torch.bfloat16)


def test_adapters_are_read_by_name(saved: Adapter) -> None:
    assert read_adapters([f"harbour={saved.folder}"], CONFIG) == (saved,)
    assert read_adapters([], EngineConfig.create(model=DEMO)) == ()
    weights = Path(saved.folder) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-2] + b"\x00\x3f")
    (changed,) = read_adapters([f"harbour={saved.folder}"], CONFIG)
    assert changed.digest != saved.digest


def test_a_pickle_is_no_adapter_and_has_a_way_to_be_one(saved: Adapter) -> None:
    weights = Path(saved.folder) / WEIGHTS_FILE
    weights.rename(weights.with_name("adapter_model.bin"))
    with pytest.raises(
        InvalidConfig, match=r"adapter_model\.bin is a pickle.*: have PEFT write adapter_model\.safetensors of it"
    ):
        read_adapters([f"harbour={saved.folder}"], CONFIG)


@pytest.mark.parametrize("module", ["harbour", "harbour=", "=folder"])
def test_a_module_is_a_name_and_a_folder(module: str) -> None:
    with pytest.raises(InvalidConfig, match=f"lora_modules='{module}': an adapter is given as NAME=FOLDER"):
        read_adapters([module], CONFIG)


def test_adapters_need_a_switch_and_names_of_their_own(saved: Adapter) -> None:
    with pytest.raises(InvalidConfig, match="lora_modules are given, and enable_lora is not"):
        read_adapters([f"harbour={saved.folder}"], EngineConfig.create(model=DEMO))
    for modules in ([f"a={saved.folder}"] * 2, [f"demo={saved.folder}"]):
        with pytest.raises(InvalidConfig, match="is another model's already"):
            read_adapters(modules, CONFIG)


def test_an_adapter_of_another_model_shows_its_models_name(tmp_path: Path) -> None:
    wider = {name: tuple(2 * size for size in shape) for name, shape in SHAPES.items()}
    saved = save_adapter(tmp_path / "wide", wider, changes={"base_model_name_or_path": "org/wide"})
    with pytest.raises(InvalidConfig, match=r"probably an adapter of another model: .*_name_or_path='org/wide'"):
        read_adapters([f"wide={saved.folder}"], CONFIG)


def test_damaged_weights_are_told_with_the_adapters_name(saved: Adapter) -> None:
    weights = Path(saved.folder) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidConfig, match=f"^adapter harbour: {weights} is "):
        read_adapters([f"harbour={saved.folder}"], CONFIG)


def test_what_cannot_be_served_is_refused_before_anything_starts(saved: Adapter, tmp_path: Path) -> None:
    def refusal() -> str:
        with pytest.raises(InvalidConfig) as caught:
            read_adapters([f"harbour={saved.folder}"], CONFIG)
        return str(caught.value)

    folder = Path(saved.folder)
    save_adapter(folder, SHAPES, rank=32)
    assert "adapter harbour has rank 32, and max_lora_rank is 16; raise it to 32" in refusal()
    save_adapter(folder, SHAPES, changes={"use_dora": True})
    assert "DoRA" in refusal()
    save_adapter(folder, SHAPES)
    tensors = load_file(folder / WEIGHTS_FILE)
    name = next(iter(tensors))
    save_file(tensors | {name: torch.full_like(tensors[name], float("nan"))}, folder / WEIGHTS_FILE)
    assert f"tensor {name} holds NaN or infinity" in refusal()
    save_file({name: tensor.int() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)
    assert "is I32; adapters may be F32, F16, BF16" in refusal()
    (folder / WEIGHTS_FILE).write_bytes(b"\1\0\0\0\0\0\0\0{")
    assert "is damaged: its header is not JSON" in refusal()
    (folder / CONFIG_FILE).write_text(json.dumps([]))
    save_file(tensors, folder / WEIGHTS_FILE)
    assert "holds list, not an object" in refusal()
    (folder / CONFIG_FILE).unlink()
    assert f"{folder / CONFIG_FILE} cannot be read: No such file" in refusal()
