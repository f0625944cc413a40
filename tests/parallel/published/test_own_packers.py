"""Checkpoints by the formats' own packers: transformers' logits, and the same bits on any number of
ranks.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ops as backends
from tests.parallel.published.own.command import MARKS, make_all
from tests.parallel.published.own.made import LOGITS, NAMES
from tests.parallel.published.publish import make_plain
from tests.parallel.published.test_reader import check_bits
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import Saved, logits_in_steps, make

pytestmark = MARKS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "plain").mkdir()
    make_all(make_plain(folder / "plain").folder, folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_transformers_on_any_number_of_ranks(made: Path, name: str) -> None:
    config = json.loads((made / name / "config.json").read_text(encoding="utf-8"))
    saved = Saved(str(made / name), config, None)
    ops = backends.select("cpu", CPU)
    found = run_ranks(1, lambda tp, pp: logits_in_steps(make(saved, tp, pp, ops=ops)))[0]
    assert found is not None
    wanted = load_file(made / name / LOGITS)
    # A number that is rounded to an integer may become another one where sums end in other bits.
    tolerance = 0.2 if name.startswith("W8A8") else 2e-4
    for number, got in enumerate(found):
        torch.testing.assert_close(got, wanted[str(number)], rtol=0, atol=tolerance)
    check_bits(saved, torch.bfloat16)
