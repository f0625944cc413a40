"""Estimates of steps: each launch is counted, and few programs, passes and waves cost what they
should.
"""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from ops import kernels
from ops.kernels.device import num_processors
from tests.benchmarks.gpu.estimate.costs import CHAINED_GAP, FETCHED, GAP, PASS, PRODUCTS, RAMP, Step, seconds
from tests.benchmarks.gpu.estimate.exactness import fast_ops
from tests.benchmarks.gpu.estimate.exactness import lines as exactness_lines
from tests.benchmarks.gpu.estimate.gpus import GPUS
from tests.benchmarks.gpu.estimate.launches import Launch, recording
from tests.benchmarks.gpu.estimate.steps import estimate, lines, make_model
from tests.benchmarks.gpu.shapes import SHAPES
from tests.ops.kernels.compiled import folded_cases
from tests.ops.kernels.where import IS_INTERPRETED

pytestmark = pytest.mark.skipif(IS_INTERPRETED, reason="interpreted kernels are launched otherwise")
H200 = GPUS["h200"]
DEMO = Path(__file__).resolve().parents[4] / "configs" / "demo"


def test_a_step_is_the_launches_of_its_layers() -> None:
    model = make_model(SHAPES["0.5b"])
    with torch.inference_mode():
        each, many = (estimate(model, Step(rows, 1024), H200) for rows in (1, 64))
    assert 24 * 7 < each.launches < 24 * 8 < many.launches, "few splits are folded where they are computed"
    assert each.seconds == pytest.approx(sum(each.by_kernel.values()))
    # 494 million weights of two bytes, those of the embedding as the head.
    assert each.floor == pytest.approx(2 * 494e6 / H200.bytes_per_s, rel=0.02)
    assert each.seconds > each.launches * (CHAINED_GAP + RAMP - FETCHED) > each.floor


def test_it_is_slower_where_memory_is_and_with_more_to_do() -> None:
    model = make_model(SHAPES["7b"])
    taken = {name: estimate(model, Step(64, 1024), gpu).seconds for name, gpu in GPUS.items()}
    assert taken["b200"] < taken["h200"] < taken["a100"] < taken["l40s"]
    greedy, plain, drawn = (
        estimate(model, Step(64, 1024, draws=draws), H200) for draws in ("greedy", "unfiltered", "any")
    )
    assert (greedy.launches + 1, plain.launches + 3) == (plain.launches, drawn.launches)
    # top_k: blocks' largest logits and their numbers, the digits; top_p: sums, numbers, digits,
    # ties.
    passes = (8 + 1 + 16 + 2 + 15 + 2) * PASS
    assert drawn.seconds - plain.seconds == pytest.approx(passes + 3 * (CHAINED_GAP + RAMP), rel=0.01)
    assert greedy.seconds < plain.seconds
    assert estimate(model, Step(64, 8192), H200).seconds > plain.seconds
    prompt = estimate(model, Step(0, 0, chunk=2048), H200)
    assert 1 < prompt.seconds / prompt.floor < 3


def test_penalties_and_logprobs_of_tokens_are_launches_of_a_graph_and_other_logprobs_are_launched() -> None:
    model = make_model(SHAPES["0.5b"])
    plain, penalized, told, with_logprobs = (
        estimate(model, Step(64, 1024, draws="any", asks=asks), H200)
        for asks in ("", "penalties", "logprob", "logprobs")
    )
    assert penalized.launches == plain.launches + 3
    assert plain.launches < told.launches < with_logprobs.launches
    assert penalized.host == told.host == plain.host < with_logprobs.host
    assert plain.seconds < told.seconds < with_logprobs.seconds
    counts = 64 * 151936 * 4 / H200.bytes_per_s  # written, and read
    assert plain.seconds + 2 * counts < penalized.seconds < plain.seconds + 5 * counts
    longer = estimate(model, Step(64, 2048, draws="any", asks="penalties"), H200)
    assert longer.by_kernel["count_kernel"] > penalized.by_kernel["count_kernel"]


def test_a_graph_spares_the_host_a_mixed_step_and_its_padding_costs_the_device_little() -> None:
    model = make_model(SHAPES["0.5b"])
    graph, launched = (estimate(model, Step(64, 1024, chunk=150, has_graph=has), H200) for has in (True, False))
    assert graph.launches == launched.launches + 1, "the copy of what comes out"
    assert launched.host > 3 * launched.seconds > 10 * graph.host
    assert graph.seconds == pytest.approx(launched.seconds, rel=0.05)
    assert graph.floor == launched.floor
    beside, alone = (estimate(model, Step(64, 1024, chunk=chunk), H200) for chunk in (150, 0))
    assert alone.seconds < beside.seconds < alone.seconds + estimate(model, Step(0, 0, chunk=150), H200).seconds


def test_few_programs_do_not_reach_the_memorys_rate() -> None:
    x = torch.empty(1 << 24, dtype=torch.uint8, device="meta")
    few, many = (seconds(Launch("add_kernel", programs, {"x": x}), Step(1, 1), H200) for programs in (8, 4096))
    assert few > 10 * many
    assert many == pytest.approx(GAP + RAMP + (1 << 24) / H200.bytes_per_s)


def test_a_draw_reads_sums_and_not_all_masses() -> None:
    masses, sums = (torch.empty(64, size, device="meta") for size in (151936, 2374))
    draw, other = (Launch(name, 64, {"masses": masses, "sums": sums}) for name in ("draw_kernel", "add_kernel"))
    assert seconds(draw, Step(64, 1), H200) < 10e-6 < seconds(other, Step(64, 1), H200)


def test_chained_kernels_follow_sooner_where_there_are_chains() -> None:
    model = make_model(SHAPES["0.5b"])
    x = torch.empty(1, 896, dtype=torch.bfloat16, device="meta")
    with torch.inference_mode(), recording(H200) as launches:
        model.logits(model.norm(x))
    assert {each.kernel: each.values.get("launch_pdl", False) for each in launches} == {
        "norm_kernel": True,
        "linear_kernel": True,
    }
    saved = {"norm_kernel": GAP - CHAINED_GAP, "linear_kernel": GAP - CHAINED_GAP + FETCHED}
    for each in launches:
        alone = Launch(each.kernel, each.programs, each.values | {"launch_pdl": False})
        difference = seconds(alone, Step(1, 1), H200) - seconds(each, Step(1, 1), H200)
        assert difference == pytest.approx(saved[each.kernel])
    with torch.inference_mode(), recording(GPUS["a100"]) as launches:
        model.logits(model.norm(x))
    assert not any(each.values.get("launch_pdl") for each in launches)


def test_few_programs_read_as_far_ahead_as_they_can() -> None:
    model = make_model(SHAPES["0.5b"])
    x = torch.empty(1, 896, dtype=torch.bfloat16, device="meta")
    with torch.inference_mode(), recording(H200) as launches:
        model.layers[0].qkv(x)
        model.logits(x)
    qkv, head = (each for each in launches if each.kernel == "linear_kernel")
    assert qkv.programs == 18
    assert [each.values["STAGES"] * each.values["INPUTS"] for each in (qkv, head)] == [6 * 128, 6 * 64]


@pytest.mark.parametrize(("heads", "launched"), [(32, ["decode_kernel"]), (34, ["decode_kernel", "fold_kernel"])])
def test_attention_has_a_program_an_item_and_many_heads_are_folded_apart(heads: int, launched: list[str]) -> None:
    with recording(H200) as launches:
        list(folded_cases(torch.bfloat16, torch.bfloat16, (heads, 2, 128)))
    assert [each.kernel for each in launches] == launched
    assert launches[0].programs == 2 * 13, "key-value heads, and splits of 3,200 tokens"


def test_exactness_costs_what_is_beyond_a_product_at_the_devices_rates() -> None:
    exact, fast = (make_model(SHAPES["7b"], ops) for ops in (kernels, fast_ops()))
    ours, theirs = (estimate(model, Step(256, 1024), H200) for model in (exact, fast))
    products = 28 * 4 + 1
    found = sum(taken for kernel, taken in theirs.by_kernel.items() if kernel in PRODUCTS)
    operations = 2 * 256 * 7.07e9  # of 256 rows and all weights: that takes longer than to read them
    assert found == pytest.approx(products * (GAP + RAMP) + operations / H200.operations_per_s, rel=0.02)
    assert theirs.seconds < ours.seconds < 1.1 * theirs.seconds
    title, row = exactness_lines([str(DEMO)], "a100", [4], 64)
    assert (title.split()[0], row.split()[:3]) == ("exactness", ["demo", "batch", "4"])


def test_nothing_is_left_of_a_gpu_that_was_not_there() -> None:
    with recording(GPUS["l40s"]) as launches:
        assert num_processors(torch.device("meta")) == 142
        torch.empty(3, device="meta").add(1)
        torch.empty(3, device="meta").view(1, 3).to(torch.float32)
        with torch.inference_mode():
            torch.empty(3, device="meta").to(torch.bfloat16)
    assert [launch.kernel for launch in launches] == ["torch add", "torch to"], "and no views"
    with recording(H200):
        assert num_processors(torch.device("meta")) == 132


def test_the_table_takes_any_checkpoint() -> None:
    table = list(lines([str(DEMO)], "a100", [1, 4], 64))
    assert [line.split("  ")[0] for line in table[2:15]] == [
        "demo batch 1",
        "demo batch 4",
        "demo batch 1, greedy",
        "demo batch 64, greedy",
        "demo batch 64, top-k, top-p",
        "demo batch 1, top-k, top-p, penalties",
        "demo batch 1, its tokens' logprobs",
        "demo batch 1, logprobs",
        "demo batch 64, top-k, top-p, penalties",
        "demo batch 64, its tokens' logprobs",
        "demo batch 64, logprobs",
        "demo batch 8, prompt 56, launched",
        "demo batch 8, prompt 56",
    ]
