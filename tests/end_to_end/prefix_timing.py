"""Whether the time to the first token tells a client what prompts another API key has sent:

    python -m tests.end_to_end.prefix_timing [--num-prompts N]

`squadron serve` serves the demo model to two keys. One sends half of the prompts; the other then
times all of them. The AUC says how well the times tell both halves apart: 0.5 is not at all; 1 is
always, and so is 0, by the opposite rule. Hence the distance from 0.5 counts, on either side.

Times that tell nothing are some distance away by chance, with few prompts far away: of 20, three
runs in ten are beyond 0.36 or 0.64. So across keys it may be 0.05, or three standard deviations of
what chance does if that is more. The same is measured within one key, with a tenth of the prompts,
where the AUC must be at least 0.9: otherwise the measurement is too coarse. Exits with status 1 if
one of them is not as it must be.
"""

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from cluster.sockets import LOOPBACK
from tests.end_to_end.commands import serve
from tests.end_to_end.conftest import free_port

MAX_DISTANCE, MIN_WITHIN = 0.05, 0.9
NUM_DEVIATIONS = 3  # chance alone is beyond them once in 370 runs
MIN_PROMPTS = 20  # within a key
PROMPT_TOKENS = 600
KEYS = "keys: [{name: victim, key: one}, {name: other, key: two}]\n"


def auc(low: list[float], high: list[float]) -> float:
    """The chance that one of `low` is below one of `high`; ties count half."""
    wins = sum((a < b) + (a == b) / 2 for a in low for b in high)
    return wins / (len(low) * len(high))


def deviation_by_chance(num_low: int, num_high: int) -> float:
    """The standard deviation of the AUC of numbers that are all drawn alike (Mann-Whitney)."""
    return math.sqrt((num_low + num_high + 1) / (12 * num_low * num_high))


def most_distance(num_prompts: int) -> float:
    """From 0.5, of an AUC across keys that so many prompts gave, half of them sent before."""
    half = num_prompts // 2
    return max(MAX_DISTANCE, NUM_DEVIATIONS * deviation_by_chance(half, half))


@contextmanager
def served() -> Iterator[str]:
    """The URL of a server with both keys."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.yaml")
        file.write_text(KEYS)
        with serve(Path(folder), port, "--api-key-file", str(file)) as command:
            command.wait_until_ready()
            yield f"http://{LOOPBACK}:{port}"


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
    parser.add_argument("--num-prompts", type=int, default=400, metavar="N", help="across keys (default: 400)")
    num_prompts = parser.parse_args().num_prompts
    num_within = max(num_prompts // 10, MIN_PROMPTS)
    rng = random.Random(0)
    with served() as url:
        clients = Clients(url)
        clients.measure("one", "two", rng, 10)  # warms up
        within = clients.measure("one", "one", rng, num_within)
        across = clients.measure("one", "two", rng, num_prompts)
    distance, most = abs(across - 0.5), most_distance(num_prompts)
    print(f"AUC of prompts of {PROMPT_TOKENS} tokens")
    print(f"within a key, of {num_within}: {within:.3f} (at least {MIN_WITHIN})")
    print(f"across keys, of {num_prompts}: {across:.3f}, {distance:.3f} from 0.5 (at most {most:.3f})")
    return 0 if distance <= most and within >= MIN_WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
