"""`squadron generate` on the demo checkpoint, in this process: one rank needs no Ray."""

import pytest

from cluster.cli import main
from tests.engine.support.workloads import DEMO

ENGINE = ("--device", "cpu", "--num-threads", "1", "--kv-cache-memory-bytes", "8MiB")


def test_prompts_are_answered_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", DEMO, "--prompt", "What is 17 + 25?", "--prompt", "What is 2 + 2?", *ENGINE]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "42" in first and "4" in second


def test_raw_text_is_continued_and_not_answered(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", DEMO, "--prompt", "What is 17 + 25?", "--max-tokens", "8", *ENGINE]
    assert main(command) == 0
    answer = capsys.readouterr().out
    assert main([*command, "--raw"]) == 0
    assert capsys.readouterr().out != answer


def test_a_prompt_that_does_not_fit_is_told_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", DEMO, "--prompt", "word " * 500, "--max-model-len", "64", *ENGINE]) == 2
    assert "64" in capsys.readouterr().err
