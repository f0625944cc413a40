"""The worked examples of CONTRIBUTING.md, each written to a file and run: an architecture, a
backend, a sampling step.
"""

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers

from cluster.checkpoint.plan import make_plan
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from ops.interface import Ops
from parallel.errors import UnsupportedModel
from parallel.groups.group import SingleGroup
from parallel.spec import MODELS, read
from tests.engine.support.demo import DEMO, answers, demo_engine
from tests.parallel.ranks import run_ranks
from tests.parallel.spec.saved import VOCAB, Saved, logits_in_steps, make, prompts, save
from tests.test_layers import breaches

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Lines that go into a file there is, below the first of its lines that begins so.
INSERTION = re.compile(r"^# (\S+\.py), below `([^`]+)`[^\n]*\n((?:(?!#|```).*\n)+)", re.MULTILINE)


def example(path: str, folder: Path) -> ModuleType:
    """The page's block that begins with the comment `path`, as a module."""
    blocks = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert breaches(path, blocks[path]) == []
    file = folder / Path(path).name
    file.write_text(blocks[path], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    """A small random Llama, and the example as what reads its config.json."""
    assert "LlamaForCausalLM" not in MODELS, "the example must be one that is not there"
    monkeypatch.setitem(MODELS, "LlamaForCausalLM", example("parallel/spec/llama.py", tmp_path).read)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.15,
    )
    return save(transformers.LlamaForCausalLM(config).eval(), tmp_path / "model", "1GB")


def expected(saved: Saved) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [saved.model(torch.tensor([prompt])).logits[0] for prompt in prompts()]


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 2)])
def test_the_architecture_has_the_logits_of_transformers(llama: Saved, tp_size: int, pp_size: int) -> None:
    rank = run_ranks(tp_size, lambda tp, pp: logits_in_steps(make(llama, tp, pp)), pp_size=pp_size)[-1]
    assert rank is not None
    for got, want in zip(rank, expected(llama), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_the_architecture_is_planned_and_served(llama: Saved) -> None:
    config = EngineConfig.create(model=llama.folder, tokenizer=str(DEMO), dtype="float32", tensor_parallel_size=2)
    plan = make_plan(config)
    parameters = dict(llama.model.named_parameters())
    assert plan.weight_bytes == 4 * sum(
        weight.numel() if weight.dim() == 1 else weight.numel() // 2
        for name, weight in parameters.items()
        if name != "model.norm.weight"
    )
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with demo_engine(model=llama.folder, tensor_parallel_size=2) as engine:
        got = [answer.outputs[0].token_ids[0] for answer in answers(engine, [(prompt, params) for prompt in prompts()])]
    assert got == [int(logits[-1].argmax()) for logits in expected(llama)]


def test_the_architecture_refuses_what_it_does_not_compute(llama: Saved) -> None:
    with pytest.raises(UnsupportedModel, match="attention_bias=True is not supported; False is"):
        read(llama.hf_config | {"attention_bias": True})


def test_the_backend_attends(llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdpa = example("ops/sdpa.py", tmp_path)
    assert (sdpa.NAME, sdpa.EXACT) == ("sdpa", False)
    for name, function in inspect.getmembers(Ops, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(function).parameters)[1:]
            assert list(inspect.signature(getattr(sdpa, name)).parameters) == wanted, name
    calls: list[int] = []
    attend = sdpa.paged_attention
    monkeypatch.setattr(sdpa, "paged_attention", lambda query, *rest: calls.append(len(query)) or attend(query, *rest))
    with torch.inference_mode():
        logits = logits_in_steps(make(llama, SingleGroup(), SingleGroup(), ops=sdpa))
    assert calls
    assert logits is not None
    for got, want in zip(logits, expected(llama), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_the_sampling_step_bans_what_is_far_below(tmp_path: Path) -> None:
    apply_margin = example("ops/logits/margin.py", tmp_path).apply_margin
    logits, margin = torch.randn(5, 40), torch.tensor([0.0, 0.5, 1.0, 2.0, torch.inf])
    changed = logits.clone()
    apply_margin(changed, margin)
    near = logits >= logits.amax(1, keepdim=True) - margin[:, None]
    assert torch.equal(changed, logits.masked_fill(~near, -torch.inf))
    assert near.sum(1).tolist() == sorted(near.sum(1).tolist())
    for row in range(5):
        alone = logits[row : row + 1].clone()
        apply_margin(alone, margin[row : row + 1])
        assert torch.equal(alone[0], changed[row])
    with pytest.raises(ValueError, match=r"margin has shape \[4\], not \[5\]"):
        apply_margin(logits, margin[:4])


def with_insertions(root: Path, section: str) -> set[str]:
    """Make the section's insertions in the tree; the files that these are in."""
    changed = set()
    for path, anchor, lines in INSERTION.findall(section):
        file = root / path
        before, start, after = re.split(
            rf"^(\s*{re.escape(anchor)}.*\n)", file.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE
        )
        file.write_text(before + start + lines + after, encoding="utf-8")
        assert path.startswith("tests/") or breaches(path, file.read_text(encoding="utf-8")) == []
        changed.add(path)
    return changed


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's packages, to be changed."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("cluster", "engine", "ops", "parallel", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (root / "configs").symlink_to(ROOT / "configs")
    return root


def test_the_sampling_step_is_a_field_of_http_and_changes_the_engines_answers(tree: Path) -> None:
    """All that the page says to write, written; seven files, with the test of the function."""
    section = PAGE.read_text(encoding="utf-8").partition("## Adding a sampling step")[2].partition("\n## ")[0]
    (path, source), *others = BLOCK.findall(section)
    assert others == []
    (tree / path).write_text(source, encoding="utf-8")
    assert len({path, *with_insertions(tree, section)}) == 6
    command = [sys.executable, "-m", "tests.worked_step"]
    run = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["folder"] == str(tree)
    tokens = said["tokens"]
    assert tokens["margin 0"] == tokens["greedy"]
    assert tokens["margin 100"] == tokens["without"]
    assert tokens["margin 3"] not in (tokens["greedy"], tokens["without"])
    assert said["is_exact"]
    assert said["is_a_kind"]
    assert [text is not None and "margin" in text for text in said["refusals"]] == 4 * [True]


def test_what_the_page_names_is_there() -> None:
    paths = set(re.findall(r"`((?:[\w-]+/)+[\w.]+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert len(paths) > 15
    assert [path for path in sorted(paths) if not (PAGE.parent / path).exists()] == []
