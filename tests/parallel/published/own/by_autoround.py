"""AutoRound's exports, each weight rounded to the nearest code."""

from pathlib import Path

import torch
import transformers
from auto_round import AutoRound
from safetensors.torch import load_file

from tests.parallel.published.own.made import AUTOROUND, load, save_logits
from tests.parallel.published.publish import WEIGHTS

TOKENIZER = Path(__file__).resolve().parents[4] / "configs" / "demo" / "tokenizer.json"  # nothing is tokenized
SHIFTS = {"gptq": range(0, 32, 4), "awq": (0, 16, 4, 20, 8, 24, 12, 28)}


def make(plain: str, name: str, folder: Path) -> None:
    form, is_symmetric = AUTOROUND[name]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    options = {"bits": 4, "group_size": 128, "sym": is_symmetric, "iters": 0, "disable_opt_rtn": True}
    made = AutoRound(load(plain, dtype=torch.float32), tokenizer, device_map="cpu", **options)
    made.quantize_and_save(str(folder), format=form)
    (below,) = (path for path in folder.iterdir() if path.is_dir())
    for path in below.iterdir():
        path.rename(folder / path.name)
    _save_logits(plain, folder, "gptq" if is_symmetric else "awq")


def _save_logits(plain: str, folder: Path, form: str) -> None:
    """Of the weights that the file stands for: transformers' own classes round its scales, and its
    biases, to float16.
    """
    stored, meant = load_file(folder / WEIGHTS), load(plain, dtype=torch.float32)
    shifts = torch.tensor(list(SHIFTS[form]))
    for name, parameter in meant.named_parameters():
        linear = name.removesuffix(".weight")
        if name in stored:
            parameter.data.copy_(stored[name])
        elif f"{linear}.qweight" in stored:
            words, zeros, scales = (stored[f"{linear}.{part}"] for part in ("qweight", "qzeros", "scales"))
            zeros = (zeros[:, :, None] >> shifts & 15).flatten(1) + (form == "gptq")
            if form == "gptq":
                codes = (words[:, None, :] >> shifts[:, None] & 15).flatten(0, 1)
            else:
                codes = (words[:, :, None] >> shifts & 15).flatten(1)
            groups = torch.arange(len(codes)) // 128
            parameter.data.copy_(((codes - zeros[groups]) * scales.float()[groups]).T)
    with torch.inference_mode():
        save_logits(meant, folder)
