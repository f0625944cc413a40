"""Whether the time to the first token tells a client what prompts another API key has sent:

    python -m tests.end_to_end.prefix_timing [--num-prompts N]

`squadron serve` serves the demo model to two keys. One sends half of the prompts; the other then
times all of them. The AUC says how well the times tell both halves apart: 0.5 is not at all, 1
always. The same is measured within one key, where they must: otherwise the measurement is too
coarse. Exits with status 1 unless across keys it is at most 0.55 and within one at least 0.9.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.end_to_end.conftest import DEMO, LOOPBACK, free_port
from tests.end_to_end.test_command import ROOT, SQUADRON

MAX_ACROSS, MIN_WITHIN = 0.55, 0.9
PROMPT_TOKENS = 1500
KEYS = "keys: [{name: victim, key: one}, {name: other, key: two}]\n"


def auc(low: list[float], high: list[float]) -> float:
    """The chance that one of `low` is below one of `high`; ties count half."""
    wins = sum((a < b) + (a == b) / 2 for a in low for b in high)
    return wins / (len(low) * len(high))


@contextmanager
def served() -> Iterator[str]:
    """The URL of a server with both keys."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.yaml")
        file.write_text(KEYS)
        command = [*SQUADRON, "serve", str(DEMO), "--port", str(port), "--device", "cpu", "--api-key-file", str(file)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("Ready: "):
                    break
            yield f"http://{LOOPBACK}:{port}"
        finally:
            process.terminate()
            process.stdout.read()
            process.wait(timeout=60)
            process.stdout.close()


class Clients:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)

    def seconds(self, key: str, prompt: list[int]) -> float:
        """Until an answer of one token."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": 1}
        started = time.perf_counter()
        answer = self._http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
        seconds = time.perf_counter() - started
        answer.raise_for_status()
        return seconds

    def measure(self, sender: str, attacker: str, rng: random.Random, num_prompts: int) -> float:
        """The AUC of prompts that were sent against those that were not, in random order, each
        timed once soon after the sender sent it.
        """
        sent: list[float] = []
        unsent: list[float] = []
        turns = [True] * (num_prompts // 2) + [False] * (num_prompts // 2)
        rng.shuffle(turns)
        for is_sent in turns:
            prompt = [rng.randrange(10, 400) for _ in range(PROMPT_TOKENS)]
            other = [rng.randrange(10, 400) for _ in range(PROMPT_TOKENS)]
            self.seconds(sender, prompt if is_sent else other)
            (sent if is_sent else unsent).append(self.seconds(attacker, prompt))
        return auc(sent, unsent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=400, metavar="N", help="for each AUC (default: 400)")
    num_prompts = parser.parse_args().num_prompts
    rng = random.Random(0)
    with served() as url:
        clients = Clients(url)
        clients.measure("one", "two", rng, 10)  # warms up
        within = clients.measure("one", "one", rng, num_prompts)
        across = clients.measure("one", "two", rng, num_prompts)
    distance = max(across, 1 - across)
    print(f"AUC of {num_prompts} prompts of {PROMPT_TOKENS} tokens: within a key {within:.3f} (at least {MIN_WITHIN})")
    print(f"across keys {across:.3f}, {distance:.3f} from the better side (at most {MAX_ACROSS})")
    return 0 if distance <= MAX_ACROSS and within >= MIN_WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
