"""A quantized checkpoint of the hub by its name, as `squadron serve NAME` serves it on two ranks:
every format, made by its own packer of the demo checkpoint.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from tests.cluster.download.hub_server import SmallHub, small_hub
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import DEMO, free_port
from tests.parallel.published.own.command import MARKS, make_all
from tests.parallel.published.own.made import LOGITS, NAMES
from tests.parallel.spec.saved import prompts

pytestmark = MARKS
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SmallHub, Path]]:
    """And the folder with the checkpoints that it has."""
    folder = tmp_path_factory.mktemp("made")
    make_all(str(DEMO), folder)
    texts = {name: (DEMO / name).read_bytes() for name in TEXTS}
    with small_hub() as hub:
        for name in NAMES:
            hub.add(repo(name), folder / name, **texts)
        yield hub, folder


def repo(name: str) -> str:
    return "squadron/demo-" + re.sub(r"[^A-Za-z0-9]+", "-", name)


@pytest.mark.parametrize("name", NAMES)
def test_its_logprobs_are_transformers(hub: tuple[SmallHub, Path], tmp_path: Path, name: str) -> None:
    server, made = hub
    port = free_port()
    options = ["--tensor-parallel-size", "2", "--dtype", "float32", "--download-dir", str(tmp_path / "models")]
    with serve(tmp_path, port, *options, model=repo(name), HF_ENDPOINT=server.url) as command:
        command.wait_until_ready()
        assert command.said[-1].startswith("Ready: "), command.said
        # A number that is rounded to an integer may become another where sums end in other bits.
        rtol, atol = (0.02, 0.2) if name.startswith("W8A8") else (0, 2e-4)
        for number, prompt in enumerate(prompts()):
            logits = load_file(made / name / LOGITS)[str(number)]
            wanted = [logits[at].log_softmax(-1)[token] for at, token in enumerate(prompt[1:])]
            body = {"model": repo(name), "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            told = answer.json()["choices"][0]["prompt_logprobs"]
            got = [each[str(token)]["logprob"] for each, token in zip(told[1:], prompt[1:], strict=True)]
            torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=rtol, atol=atol)
