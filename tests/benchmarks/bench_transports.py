"""What carries blocks from node to node: bytes a second over TCP, and by NIXL if it is installed.

    python -m tests.benchmarks.bench_transports [--bytes 917504] [--threads 4] [--seconds 1]

A server in a process of its own has one block, which threads of this process ask for again and
again over loopback, as a rank's do, digests left out. NIXL moves it by what UCX finds, which on one
machine is shared memory, and by UCX's TCP alone. All take turns; the median of the rounds counts.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.bench.environment import environment
from engine.offload.block_files import BlockFiles, Folder
from engine.offload.file_format import HEADER_BYTES, file_name
from engine.offload.peers.peers import Peers
from tests.engine.offload.peers.serving import served_apart
from tests.engine.offload.peers.test_block_server import CONTENT, LAYOUT, SECRET
from tests.engine.support.nixl import HAS_NIXL

ROUNDS = 3
NAME = file_name(LAYOUT, CONTENT, 0)
UCX_TRANSPORTS = {"NIXL, what UCX finds": None, "NIXL, UCX's TCP": "tcp"}  # UCX_TLS


def measured(folder: Path, asked: argparse.Namespace, *, uses_nixl: bool) -> float:
    """Bytes a second. Raises ValueError if a block does not come."""
    size = HEADER_BYTES + asked.bytes
    own = Peers(SECRET, uses_nixl=uses_nixl)
    with served_apart(folder) as served, ThreadPoolExecutor(asked.threads) as threads:

        def fetch(until: float) -> int:
            num_bytes = 0
            while not num_bytes or time.monotonic() < until:
                data = own.fetch(served.address, NAME, size)
                if data is None:
                    raise ValueError(f"no block of {size:,} bytes came from {served.address}")
                num_bytes += len(data)
            return num_bytes

        list(threads.map(fetch, [0.0] * 4 * asked.threads))  # connections, and memory that is touched
        began = time.monotonic()
        total = sum(threads.map(fetch, [began + asked.seconds] * asked.threads))
        seconds = time.monotonic() - began
        count = served.num_served(1)
    own.close()
    assert bool(count["nixl"]) is uses_nixl and not count["nixl_failed"], count
    return total / seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=16 * 56 << 10, help="of a block")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        BlockFiles(Folder(folder), LAYOUT, 0).write(CONTENT, os.urandom(asked.bytes))
        for _ in range(ROUNDS):
            found.setdefault("TCP", []).append(measured(Path(folder), asked, uses_nixl=False))
            for name, transports in UCX_TRANSPORTS.items() if HAS_NIXL else ():
                os.environ |= {} if transports is None else {"UCX_TLS": transports}
                found.setdefault(name, []).append(measured(Path(folder), asked, uses_nixl=True))
                os.environ.pop("UCX_TLS", None)
    results: dict[str, Any] = {**environment(), "asked": vars(asked), "bytes a second": found}
    for name, rates in found.items():
        each = ", ".join(f"{rate / 1e6:.0f}" for rate in rates)
        print(f"{name:24}{statistics.median(rates) / 1e6:>8.0f} MB/s  ({each})")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
