"""What is said of files that are not read."""

import pytest

from engine.checkpoint.other_formats import told_by


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["pytorch_model.bin"], "pytorch_model.bin is a pickle, which could run code and is not read"),
        (["pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin"], "pytorch_model-00001-of-00002.bin"),
        (["README.md", "model.pt"], "model.pt is a pickle"),
        (["consolidated.00.pth"], "consolidated.00.pth is a pickle"),
        (["model-q4_0.gguf"], "model-q4_0.gguf is a GGUF file"),
        (["tf_model.h5"], "tf_model.h5 is a file of another framework"),
        (["adapter_config.json", "adapter_model.safetensors"], "name the model that it is for"),
        (["adapter_model.safetensors", "optimizer.pt", "training_args.bin"], "adapter_model.safetensors is an adapter"),
        (["optimizer.bin", "pytorch_model.bin", "rng_state_0.pth"], "pytorch_model.bin is a pickle"),
        (["model-00001-of-00002.safetensors"], "weights in several files need an index"),
    ],
)
def test_the_file_is_named_with_what_it_is(names: list[str], said: str) -> None:
    assert said in str(told_by(names))


@pytest.mark.parametrize(
    "names",
    [
        ["README.md", "config.json", "tokenizer.json"],
        ["optimizer.pt", "rng_state.pth", "scheduler.pt", "training_args.bin"],
        ["model.safetensors", "pytorch_model.bin"],
        ["model-00001-of-00002.safetensors", "model.safetensors.index.json"],
    ],
)
def test_of_other_files_nothing_is_said(names: list[str]) -> None:
    """Nor of weights that are read, where config.json is missing."""
    assert told_by(names) is None
