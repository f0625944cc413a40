"""`eval "$(python -m cluster.ingress.node)"` before `ray start`, on each node of a cluster: Serve's
processes on it are then told that HAProxy listens, and which address gateways listen on.

With HAProxy, gateways must be reached from other nodes. Serve would have them listen on every
network; they listen on the node's address alone, NODE_IP.
"""

import argparse
import os
import shlex
import sys
import zlib
from pathlib import Path

from cluster.ingress.environment import ENABLE, PLACE, ROOT, environment_of, reserved_port, why_not_here
from cluster.ingress.haproxy import NODE_ADDRESS, check_folder
from engine.errors import InvalidConfig

ADDRESS = "NODE_IP"  # the variable that `ray start --node-ip-address` is given, too


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.ingress.node", description=__doc__)
    parser.add_argument(
        "--ingress", choices=("auto", "haproxy", "proxy"), default="auto", help="see squadron serve (default: auto)"
    )
    wish = parser.parse_args().ingress
    reason = "--ingress proxy" if wish == "proxy" else ""
    environment = {ENABLE: "0"}
    if not reason:
        try:
            environment = haproxy_environment(os.environ.get(ADDRESS, ""))
        except InvalidConfig as error:
            reason = str(error)
            if wish == "haproxy":
                raise SystemExit(f"ingress=haproxy cannot be had: {reason}") from None
    print(f"Ingress: Serve's own proxy, not HAProxy: {reason}" if reason else "Ingress: HAProxy", file=sys.stderr)
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}")


def haproxy_environment(address: str) -> dict[str, str]:
    """For the processes of this node, with this address. Raises InvalidConfig."""
    reason = why_not_here() or ("" if address else f"{ADDRESS}, this node's address, is not set")
    if reason:
        raise InvalidConfig(reason)
    # This installation's. Its name is short because a socket's path has at most 107 bytes, 57 of
    # them Serve's.
    folder = Path(f"{PLACE}/squadron-h-{os.getuid()}-{zlib.crc32(bytes(ROOT)):08x}")
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        check_folder(folder)
    except SystemExit as error:
        raise InvalidConfig(str(error)) from None
    with reserved_port(address) as port:  # this process ends before Ray starts, and the reservation with it
        return environment_of(folder, port) | {NODE_ADDRESS: address}


if __name__ == "__main__":
    main()
