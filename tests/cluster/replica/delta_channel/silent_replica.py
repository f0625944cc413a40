"""What a replica does as far as its life goes:
`python -m tests.cluster.replica.delta_channel.silent_replica HOST PORT TOKEN`.

It reports to the gateway there, several times a second, and says a line: its witness' process. At
each line that it reads, it holds the interpreter's lock for as many seconds as the line says, and
answers with one of its own.
"""

import asyncio
import ctypes
import os
import sys
import threading

from cluster.replica.delta_channel.client import DeltaClient
from cluster.replica.delta_channel.messages import EngineReport, GatewayAddress
from engine.records.stats import EngineStats

libc = ctypes.PyDLL(None)  # whose calls, unlike a CDLL's, keep the lock


async def main() -> None:
    host, port, token = sys.argv[1:]
    client = DeltaClient(lambda address: None)
    await client.connect(GatewayAddress(host, int(port), bytes.fromhex(token)))
    report = EngineReport("replica", "node", os.getpid(), None, EngineStats(**dict.fromkeys(EngineStats.__slots__, 0)))
    client.report(report)
    print(client._witness._process.pid, flush=True)
    threading.Thread(target=hold_the_lock, daemon=True).start()
    while True:
        await asyncio.sleep(0.1)
        client.report(report)


def hold_the_lock() -> None:
    for line in sys.stdin:
        libc.sleep(int(line))
        print("held", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
