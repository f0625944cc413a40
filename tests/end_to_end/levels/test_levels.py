"""Two engine replicas whose processors differ: a stream goes on where its tokens would have been
the same, and its client is told if there is no such place.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ops.cpu import build
from tests.end_to_end.chaos.app import App, app_args, injected, running
from tests.end_to_end.levels.sitecustomize import BEST, FILE

SECONDS = 120.0  # more than a replica takes to be replaced, and less than a request waits for one
BODY = {
    "model": "demo",
    "prompt": "once upon a",
    "max_tokens": 400,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}

pytestmark = pytest.mark.skipif(
    "avx2" not in build.runnable_levels()[1:] or "SQUADRON_CPU_ISA" in os.environ,
    reason="needs AVX2 and a better level",
)


class Mixed:
    """The application, and what the next replicas to start are to compute with."""

    def __init__(self, app: App, levels: Path) -> None:
        self._app = app
        self._levels = levels
        self.client = openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=SECONDS)

    def engines(self) -> dict[str, dict[str, Any]]:
        """The last reports, by fingerprint."""
        reports = httpx.get(f"{self._app.url}/debug/engines", timeout=SECONDS).json()["engines"]
        return {report["fingerprint"]: report for report in reports}

    def stream(self, replaced_by: Callable[[str], str]) -> tuple[str, str]:
        """The text and the fingerprint of a stream whose replica is killed; `replaced_by`: what the
        next one computes with, given what this one did.
        """
        text, fingerprint = "", ""
        for number, chunk in enumerate(self.client.completions.create(**BODY, stream=True)):
            text += "".join(choice.text for choice in chunk.choices)
            assert fingerprint in ("", chunk.system_fingerprint)
            fingerprint = chunk.system_fingerprint or ""
            if number == 20:
                engine = self.engines()[fingerprint]
                level = "avx2" if "-avx2-" in engine["arithmetic"]["ops"] else BEST
                self._levels.write_text(f"{replaced_by(level)}\n")
                os.kill(engine["pid"], signal.SIGKILL)
        return text, fingerprint


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    levels = tmp_path_factory.mktemp("levels") / "levels"
    levels.write_text(f"{BEST}\navx2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILE, str(levels))
        args = app_args({"dtype": "bfloat16"}, recovers=True, num_engines=2)
        with injected(Path(__file__).parent), running(args) as app:
            mixed = Mixed(app, levels)
            deadline = time.monotonic() + SECONDS
            while len(mixed.engines()) < 2:
                assert time.monotonic() < deadline, "there are not two levels"
                time.sleep(0.1)
            with mixed.client:
                yield mixed


@pytest.mark.long
def test_a_stream_waits_for_a_replica_of_its_level(mixed: Mixed) -> None:
    undisturbed: dict[str, str] = {}
    while len(undisturbed) < 2:
        answer = mixed.client.completions.create(**BODY)
        undisturbed[answer.system_fingerprint or ""] = answer.choices[0].text
    text, fingerprint = mixed.stream(replaced_by=lambda level: level)
    assert text == undisturbed[fingerprint]


@pytest.mark.long
def test_its_client_is_told_if_none_comes(mixed: Mixed) -> None:
    with pytest.raises(openai.APIError) as caught:
        mixed.stream(replaced_by=lambda level: BEST if level == "avx2" else "avx2")
    assert caught.value.code == "fingerprint_changed"
    assert "every engine replica has another fingerprint" in str(caught.value)
    assert len(mixed.engines()) == 1
