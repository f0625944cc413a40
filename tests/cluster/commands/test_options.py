"""Every field of the engine's configuration is an option."""

import argparse
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.commands.options import DESCRIPTIONS, add_engine_options, engine_arguments, read_config_file
from engine.config import EngineConfig
from engine.errors import InvalidConfig


def parsed(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return engine_arguments(parser.parse_args(arguments))


def test_every_field_has_a_description() -> None:
    not_for_people = {"source", "kv_peer_secret", "kv_peer_transport", "kv_leaving_size", "kv_leaving_path"}
    assert set(DESCRIPTIONS) == set(EngineConfig.model_fields) - {"model", *not_for_people}


def test_options_that_are_not_given_are_absent() -> None:
    assert parsed() == {}


def test_every_kind_of_option() -> None:
    arguments = ("-tp", "2", "--pipeline-parallel-size", "4", "--watermark", "0.5", "--dtype", "float32")
    assert parsed(*arguments, "--no-enable-prefix-caching", "--block-size", "16", "--tokenizer", "x") == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 4,
        "watermark": 0.5,
        "dtype": "float32",
        "enable_prefix_caching": False,
        "block_size": 16,
        "tokenizer": "x",
    }


def test_a_mapping_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = '{"method": "ngram", "num_speculative_tokens": 3}'
    speculation = {"method": "ngram", "num_speculative_tokens": 3}
    assert parsed("--speculative-config", given) == {"speculative_config": speculation}
    for wrong, said in (
        ("{", "'{' is not JSON: "),
        ('{"a": 1, "a": 2}', "'{\"a\": 1, \"a\": 2}' is not JSON: the key 'a' is"),
        ("3", "'3' is not a JSON object"),
    ):
        with pytest.raises(SystemExit):
            parsed("--speculative-config", wrong)
        assert f"argument --speculative-config: {said}" in capsys.readouterr().err


def test_a_value_of_other_servers_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--quantization", "gptq_marlin")
    said = "argument --quantization: gptq_marlin: a checkpoint in this format is served without this option"
    assert said in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name in DESCRIPTIONS:
        assert "--" + name.replace("_", "-") in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aliases:\n  x: a\n  x: b\n", "the key 'x' is there twice; keep one of them .* line 3, column 3"),
        ("port: 1\nport: 2\n", "the key 'port' is there twice"),
        ("max-model-len: 1\nmax_model_len: 2\n", "gives max_model_len twice, with _ and with -; keep one of them"),
    ],
)
def test_a_key_that_is_there_twice(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfig, match=said):
        read_config_file(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nrevision: 2026-02-30\n", "'2026-02-30' cannot be read: day is out of range .* line 2, column 11"),
        (f"port: {'9' * 5000}\n", "'9{64}' cannot be read: Exceeds the limit .* line 1, column 7"),
    ],
)
def test_a_value_that_is_none_of_its_kind(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfig, match=said):
        read_config_file(str(path))


def test_what_a_file_merges_may_be_set_anew(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n", encoding="utf-8")
    assert read_config_file(str(path))["b"] == {"x": 3, "y": 2}
