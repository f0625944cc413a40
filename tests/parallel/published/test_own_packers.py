"""Checkpoints by the formats' own packers: transformers' logits, and the same bits on any number of
ranks.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ops as backends
from tests.parallel.published.own.made import LOGITS, NAMES
from tests.parallel.published.publish import make_plain
from tests.parallel.published.test_reader import check_bits
from tests.parallel.ranks import CPU, run_ranks
from tests.parallel.spec.saved import Saved, logits_in_steps, make

PACKERS = Path(sys.prefix) / "packers"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PACKERS.exists(), reason="no packers here: `make .venv/packers` installs them"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "plain").mkdir()
    plain = make_plain(folder / "plain")
    command = [sys.executable, "-m", "tests.parallel.published.own", plain.folder, str(folder)]
    paths = os.pathsep.join([str(PACKERS), os.getcwd()])
    # What they log and offload goes into the folder; to compile for one step is not worth it.
    given = {"PYTHONPATH": paths, "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    found = subprocess.run(command, env=os.environ | given, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-4000:]
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
