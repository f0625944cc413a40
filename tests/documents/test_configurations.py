"""JSON and YAML of the documents, read by what reads it when it is used; and Python that needs no
server.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from cluster.api.keys.key_file import read_key_file
from cluster.cli import _parser
from cluster.commands.server.configure import application, configure
from cluster.launch.config.app_config import AppConfig, read_app_config
from cluster.launch.config.model_config import Autoscaling
from cluster.launch.replicas import DRAIN_SECONDS
from cluster.llm import LLM
from engine.sampling_params import SamplingParams
from tests.benchmarks import bench_autoscaling
from tests.documents.snippets import ROOT, snippet


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(snippet("docs/security.md", "requests_per_minute").text, encoding="utf-8")
    chat, batch = read_key_file(file)
    assert (chat.name, chat.weight, chat.has_limits) == ("chat", 4, False)
    assert (batch.name, batch.loads_adapters, batch.has_limits) == ("batch", True, True)


def test_autoscaling() -> None:
    args = yaml.safe_load(snippet("docs/autoscaling.md", "min_engines").text)["args"]
    (model,) = read_app_config(args).all_models()
    assert model.autoscaling is not None and model.most_engines == 8
    file = yaml.safe_load((ROOT / "configs" / "serve" / "autoscaling.yaml").read_text(encoding="utf-8"))
    assert read_app_config(file["applications"][0]["args"]).all_models()


def test_several_models(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(snippet("docs/models.md", "gpt-4o-mini").text, encoding="utf-8")
    models, server = configure(_parser().parse_args(["serve", "--config", str(file)]))
    assert [model.config.model_name for model in models] == ["chat", "chat-next", "embed"]
    app = AppConfig(**application(server, models, ()))
    assert [model.num_engines for model in app.all_models()] == [2, 1, 1]
    assert set(app.aliases) == {"gpt-4o-mini", "assistant"}


def test_offline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = snippet("docs/python.md", "from cluster.llm import LLM")
    exec(compile(shown.text, shown.page, "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "c-a-t"


def test_a_trainer_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tensors = load_file("configs/demo/model.safetensors")
    names: dict[str, Any] = {"LLM": LLM, "SamplingParams": SamplingParams, "prompts": ["one"]}
    names["model"] = SimpleNamespace(state_dict=lambda: tensors)
    shown = snippet("docs/trainers.md", "with LLM(")
    exec(compile(shown.text, shown.page, "exec"), names)
    (output,) = names["outputs"]
    assert output.outputs[0].logprobs


def test_the_day_of_autoscaling_is_what_the_policy_makes_of_it() -> None:
    loads = bench_autoscaling.day(bench_autoscaling.PEAK)
    engines = bench_autoscaling.simulate(Autoscaling(max_engines=bench_autoscaling.MOST), loads)
    shown = snippet("docs/autoscaling.md", "o: engines").text
    assert shown.splitlines() == bench_autoscaling.plot(loads, engines)
    hour = 3600 // bench_autoscaling.TICK
    assert "six engines at 14:00" in words("docs/autoscaling.md")
    assert loads[14 * hour] == bench_autoscaling.PEAK == 6 > max(loads[12 * hour], loads[16 * hour])
    assert f"It takes {sum(engines) / hour:.0f} engine hours; twelve" in words("docs/autoscaling.md")


@pytest.mark.parametrize("page", ["docs/one-node.md", "docs/production.md"])
def test_how_long_a_server_that_ends_finishes_what_runs(page: str) -> None:
    assert re.findall(r"finishes (?:them|what runs) (.+?)[ .,|]*(?:All|\|)", words(page)) == [
        f"for {DRAIN_SECONDS:g} s"
    ]


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())
