"""What the documents show a user to type, against the running system."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
BASE_URL = "http://127.0.0.1:8000"
RAY_ADDRESS = "127.0.0.1:34827"


def example(page: str, language: str, part: str) -> str:
    """The page's block of code that has `part` in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if part in block]
    return str(found)


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_curl(server: Server, page: str) -> None:
    _, url, *options = shlex.split(example(page, "bash", "17 + 25").replace("\\\n", ""))
    assert options[::2] == ["-H", "-d"]
    header, body = options[1::2]
    headers = dict([header.split(": ", 1)])
    answer = httpx.post(url.replace(BASE_URL, server.url), headers=headers, content=body, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "42"
    shown = json.loads(example("docs/api.md", "json", "system_fingerprint"))
    assert answer.keys() == shown.keys()
    assert answer["choices"][0].keys() == shown["choices"][0].keys()
    assert answer["usage"]["total_tokens"] == shown["usage"]["total_tokens"]


def test_the_openai_client(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = example("README.md", "python", "from openai")
    assert BASE_URL in code
    exec(compile(code.replace(BASE_URL, server.url), "README.md", "exec"), {})
    assert capsys.readouterr().out == "3, 4, 5, 6, 7, 8, 9"


def test_another_ray_job(server: Server, tmp_path: Path) -> None:
    code = example("docs/python.md", "python", "get_app_handle")
    assert RAY_ADDRESS in code
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | server.ray.environment
    done = subprocess.run(
        [sys.executable, "-c", code.replace(RAY_ADDRESS, server.ray.address)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "4"
    assert lines[-1].endswith("True")
