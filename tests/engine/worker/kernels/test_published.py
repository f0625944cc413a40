"""Checkpoints in published formats on the Triton kernels: the logits that transformers gives with
the numbers that the codes stand for, the same alone and beside others.
"""

from pathlib import Path

import pytest
import torch

from ops import kernels
from parallel.decoder import Decoder, Stage
from parallel.spec import read
from tests.ops.kernels.where import DEVICE, MARKS, SLOW
from tests.parallel.alone import Alone
from tests.parallel.published.packers import FORMATS
from tests.parallel.published.publish import make_plain, publish
from tests.parallel.spec.saved import Saved
from tests.parallel.steps import Runner

pytestmark = MARKS
PROMPTS = [[7 + 3 * k for k in range(19)], [5, 6, 7]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return make_plain(tmp_path_factory.mktemp("plain"), num_layers=1)


@pytest.mark.parametrize(
    "name",
    ["awq", *(pytest.param(name, marks=SLOW) for name in ("gptq 4 act-order", "W8A16", "W8A8", "FP8 blocks"))],
)
def test_logits(name: str, plain: Saved, tmp_path: Path) -> None:
    form = FORMATS[name]
    published = publish(plain, form, tmp_path)
    alone = Alone(0, 1)
    model = Decoder(
        read(published.hf_config), ops=kernels, tp=alone, stage=Stage(0, 1, None), dtype=torch.float32, device=DEVICE
    )
    model.load_weights(published.folder, {})
    together = Runner(model, 2).step({0: (0, PROMPTS[0]), 1: (0, PROMPTS[1])})
    by_itself = Runner(model, 2).step({1: (0, PROMPTS[1])})
    assert together is not None and by_itself is not None
    assert torch.equal(together[len(PROMPTS[0]) :], by_itself)
    # A number that is rounded to an integer may become another one where sums end in other bits.
    tolerance = 0.2 if form.rounds_inputs else 2e-4
    wanted = published.model.to(DEVICE)
    with torch.inference_mode():
        for got, prompt in zip(together.split([len(prompt) for prompt in PROMPTS]), PROMPTS, strict=True):
            want = wanted(torch.tensor([prompt], device=DEVICE)).logits[0]
            torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
