"""Checkpoints in every published format: the logits that transformers gives with the numbers that
the codes stand for, and the same bits on any number of ranks.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ops as backends
from parallel.published.reader import LinearReader
from parallel.spec import read
from parallel.spec.published.read import read_scheme
from tests.parallel.published.packers import FORMATS, Format, awq, gptq, packed
from tests.parallel.published.publish import NUM_LEAVES, make_plain, publish
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import Saved, logits_in_steps, make, make_and_save, prompts


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return make_plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=FORMATS)
def published(request: pytest.FixtureRequest, plain: Saved, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return publish(plain, FORMATS[request.param], tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_are_those_of_the_numbers_that_codes_stand_for_on_any_number_of_ranks(
    published: Saved, backend: str
) -> None:
    check(published, backend)


@pytest.mark.parametrize("name", ["W8A8", "W4A16", "gptq 4 act-order"])
def test_queries_and_keys_with_norms(name: str, tmp_path: Path) -> None:
    """Qwen3's, between the linears and the rotation."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "published").mkdir()
    plain = make_plain(tmp_path / "plain", kind="Qwen3")
    check(publish(plain, FORMATS[name], tmp_path / "published"), "cpu")


def check(published: Saved, backend: str) -> None:
    """Its logits against transformers', and its bits on 1, 2 and 4 ranks."""
    if (reason := backends.unavailable_reason(backend, CPU)) is not None:
        pytest.skip(reason)
    assert read(published.hf_config).num_leaves == NUM_LEAVES
    ops = backends.select(backend, CPU)
    scheme = read(published.hf_config).scheme
    assert scheme is not None
    if scheme.kind not in ops.PUBLISHED:
        pytest.skip(f"{scheme.name} is refused")
    whole = run_ranks(1, lambda tp, pp: logits_in_steps(make(published, tp, pp, ops=ops)))[0]
    assert whole is not None
    # A number that is rounded to an integer may become another one where sums end in other bits.
    tolerance = 0.2 if published.hf_config["quantization_config"].get("format") == "int-quantized" else 2e-4
    with torch.inference_mode():
        for got, prompt in zip(whole, prompts(), strict=True):
            want = published.model(torch.tensor([prompt])).logits[0]
            torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    if ops.EXACT:
        check_bits(published, torch.bfloat16)


def check_bits(published: Saved, dtype: torch.dtype) -> None:
    ops = backends.select("cpu", CPU)
    whole, *others = (
        run_ranks(size, lambda tp, pp: logits_in_steps(make(published, tp, pp, dtype, ops))) for size in (1, 2, 4)
    )
    for ranks in others:
        for rank in ranks:
            assert all(torch.equal(got, want) for got, want in zip(rank, whole[0], strict=True))


EXPERTS = {
    "awq": awq(size=16),
    "gptq 4": gptq(4, has_order=False, is_symmetric=True, size=16),
    "gptq 8": gptq(8, has_order=False, is_symmetric=False, size=16),
    "W4A16": packed(4, size=16, is_symmetric=True),
    "W4A16 zeros": packed(4, size=16, is_symmetric=False),
    "W8A16": FORMATS["W8A16"],
    "FP8 channel": FORMATS["FP8 channel"],
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str, tmp_path: Path) -> None:
    """As the plain checkpoint with the numbers that the codes stand for, and the same bits on any
    number of ranks.
    """
    plain, form = make_and_save("qwen3_moe", tmp_path), EXPERTS[name]
    tensors = load_file(tmp_path / "model.safetensors")
    scheme = read_scheme({"quantization_config": form.config})
    assert scheme is not None
    stored: dict[str, torch.Tensor] = {}
    for key in [key for key in tensors if scheme.is_quantized(key.removesuffix(".weight"))]:
        parts, tensors[key] = form.pack(tensors[key].float())
        stored |= {f"{key.removesuffix('.weight')}.{part}": each.contiguous() for part, each in parts.items()}
    (tmp_path / "meant").mkdir()
    (tmp_path / "published").mkdir()
    save_file(tensors, tmp_path / "meant/model.safetensors")
    rest = {key: each for key, each in tensors.items() if not scheme.is_quantized(key.removesuffix(".weight"))}
    save_file(rest | stored, tmp_path / "published/model.safetensors")
    assert any("experts" in key for key in stored)
    ops = backends.select("cpu", CPU)
    meant = Saved(str(tmp_path / "meant"), plain.hf_config, plain.model)
    published = Saved(str(tmp_path / "published"), plain.hf_config | {"quantization_config": form.config}, plain.model)
    want = run_ranks(1, lambda tp, pp: logits_in_steps(make(meant, tp, pp, ops=ops)))[0]
    alone, both = (run_ranks(size, lambda tp, pp: logits_in_steps(make(published, tp, pp, ops=ops))) for size in (1, 2))
    for got, logits in zip(alone[0], want, strict=True):
        torch.testing.assert_close(got, logits, rtol=0, atol=2e-4)
    for rank in both:
        assert all(torch.equal(got, logits) for got, logits in zip(rank, alone[0], strict=True))


@pytest.mark.parametrize("form", [gptq(bits, has_order=False, is_symmetric=False) for bits in (4, 8)])
def test_zero_points_of_zero(form: Format) -> None:
    """Of positive numbers, some in company: what is stored for them takes one from the next."""
    torch.manual_seed(2)
    weight = torch.randn(64, 256)
    weight[::3] = weight[::3].abs()
    stored, numbers = form.pack(weight)
    scheme = read_scheme({"quantization_config": form.config})
    assert scheme is not None

    def part(name: str, index: Any) -> torch.Tensor:
        return stored[name.removeprefix("linear.")][... if index is None else index]

    for rows in (slice(0, 64), slice(13, 31)):
        reader = LinearReader(part, scheme, "linear", rows, slice(0, 256))
        torch.testing.assert_close(reader.weight(torch.float32).numbers(), numbers[rows], rtol=0, atol=0)
