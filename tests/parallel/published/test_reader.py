"""Checkpoints in every published format: the logits that transformers gives with the numbers that
the codes stand for, and the same bits on any number of ranks.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import ops as backends
from parallel.spec import read
from parallel.spec.published.read import read_scheme
from parallel.spec.published.scheme import LINEARS
from tests.parallel.published.packers import FORMATS, Format, awq, is_ignored
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import VOCAB, Saved, logits_in_steps, make, make_and_save, prompts, save

NUM_LEAVES = 4


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """With groups of 128 that straddle leaves of 64 inputs, and blocks of 128 outputs that straddle
    ranks.
    """
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.08,
    )
    return save(transformers.Qwen2ForCausalLM(config).eval(), tmp_path_factory.mktemp("plain"), "1GB")


def publish(plain: Saved, form: Format, folder: Path) -> Saved:
    """The checkpoint quantized, and transformers' model with the numbers that its codes stand
    for.
    """
    tensors = load_file(Path(plain.folder) / "model.safetensors")
    model = transformers.Qwen2ForCausalLM(plain.model.config).eval()
    model.load_state_dict(plain.model.state_dict())
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] not in LINEARS or is_ignored(form.config, name):
            continue
        parts, meant = form.pack(tensors.pop(f"{name}.weight"))
        tensors = {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()} | tensors
        with torch.no_grad():
            module.weight.copy_(meant)
        if form.rounds_inputs:
            leaves = NUM_LEAVES if name.endswith(("o_proj", "down_proj")) else 1
            module.register_forward_pre_hook(lambda _, given, leaves=leaves: rounded(given[0], leaves, form))
    save_file(tensors, folder / "model.safetensors")
    config = plain.hf_config | {"quantization_config": form.config}
    (folder / "config.json").write_text(json.dumps(config))
    return Saved(str(folder), config, model)


def rounded(x: torch.Tensor, num_leaves: int, form: Format) -> torch.Tensor:
    leaves = x.unflatten(-1, (num_leaves, -1))
    scale = form.input_scale or leaves.abs().amax(-1, keepdim=True) / 127
    return ((leaves / scale).round().clamp(-128, 127) * scale).flatten(-2)


@pytest.fixture(scope="module", params=FORMATS)
def published(request: pytest.FixtureRequest, plain: Saved, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return publish(plain, FORMATS[request.param], tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_are_those_of_the_numbers_that_codes_stand_for_on_any_number_of_ranks(
    published: Saved, backend: str
) -> None:
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


@pytest.mark.parametrize("name", ["awq", "FP8 channel"])
def test_experts(name: str, tmp_path: Path) -> None:
    """As the plain checkpoint with the numbers that the codes stand for, on any number of ranks."""
    plain = make_and_save("qwen3_moe", tmp_path)
    form = awq(size=16) if name == "awq" else FORMATS[name]
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
    for size in (1, 2):
        for rank in run_ranks(size, lambda tp, pp: logits_in_steps(make(published, tp, pp, ops=ops))):
            for got, logits in zip(rank, want, strict=True):
                torch.testing.assert_close(got, logits, rtol=0, atol=2e-4)
