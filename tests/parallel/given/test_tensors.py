"""Whole tensors as a source of weights: each rank's slices, and what is refused."""

import pytest
import torch

from parallel.errors import InvalidCheckpoint
from parallel.given.tensors import GivenTensors

SHAPES = {"model.embed_tokens.weight": (4, 6), "model.norm.weight": (6,)}
CPU = torch.device("cpu")


def given(**changes):
    tensors = {name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in SHAPES.items()}
    tensors |= {name.replace("_weight", ".weight"): value for name, value in changes.items()}
    return GivenTensors(tensors, SHAPES, {"lm_head.weight"}, torch.bfloat16, CPU), tensors


def test_slices_are_copies_in_the_models_dtype() -> None:
    source, tensors = given()
    whole = tensors["model.embed_tokens.weight"]
    part = source.linear("model.embed_tokens", slice(1, 3), slice(0, 2))
    assert part.equal(whole[1:3, 0:2].bfloat16()) and part.is_contiguous()
    before = part.clone()
    whole.zero_()
    assert part.equal(before)
    assert source.read("model.norm.weight", slice(None)).equal(tensors["model.norm.weight"].bfloat16())


def test_numpy_arrays_and_tensors_that_are_trained_will_do() -> None:
    tensors = {"model.embed_tokens.weight": torch.ones(4, 6, requires_grad=True), "model.norm.weight": torch.ones(6)}
    as_arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    sources = [GivenTensors(each, SHAPES, set(), torch.float32, CPU) for each in (tensors, as_arrays)]
    assert sources[0].verify() == sources[1].verify()


def test_the_digest_is_of_every_number() -> None:
    source, tensors = given()
    digest = source.verify()
    assert given()[0].verify() == digest
    tensors["model.embed_tokens.weight"][2, 3] += 1
    assert source.verify() != digest


def test_a_model_without_its_prefix() -> None:
    _, tensors = given()
    short = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert GivenTensors(short, SHAPES, set(), torch.bfloat16, CPU).verify() == given()[0].verify()


def test_a_tied_head_is_the_embedding() -> None:
    source, tensors = given()
    embedding = tensors["model.embed_tokens.weight"]
    assert given(lm_head_weight=embedding.clone())[0].verify() == source.verify()
    other = embedding.clone()
    other[3, 5] += 1
    with pytest.raises(InvalidCheckpoint, match=r"^lm_head.weight differs from model.embed_tokens.weight, to which"):
        given(lm_head_weight=other)[0].verify()
    with pytest.raises(InvalidCheckpoint, match=r"^lm_head.weight is no tensor but str"):
        given(lm_head_weight="the same")[0].verify()


def test_what_is_refused() -> None:
    _, tensors = given()
    lacking = {"model.norm.weight": tensors["model.norm.weight"]}
    for wrong, message in [
        ({**tensors, "x": torch.ones(1)}, "the model has no tensor x"),
        (lacking | {"lm_head.weight": torch.ones(1)}, r"model.embed_tokens.weight, of shape \[4, 6\], is missing"),
        ({**tensors, "model.norm.weight": torch.ones(5)}, r"model.norm.weight has shape \[5\], not \[6\]"),
        ({**tensors, "model.norm.weight": torch.ones(6, dtype=torch.int32)}, "is int32; weights may be float32, bfl"),
        ({**tensors, "model.norm.weight": torch.full((6,), torch.nan)}, "model.norm.weight holds NaN or infinity"),
        ({**tensors, "model.norm.weight": torch.full((6,), 3e38)}, "holds NaN or infinity, as torch.float16"),
        ({**tensors, "model.norm.weight": "six"}, "model.norm.weight is no tensor but str"),
    ]:
        with pytest.raises(InvalidCheckpoint, match=message):
            GivenTensors(wrong, SHAPES, {"lm_head.weight"}, torch.float16, CPU).verify()
