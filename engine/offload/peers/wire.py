"""What both ends of a connection have in common: whole reads before a deadline, and the proof that
each knows the secret.

```text
server -> reader   MAGIC, 32 random bytes
reader -> server   32 random bytes, proof of both as "reader"
server -> reader   proof of both as "server"
```

Then questions and answers, in turn:

```text
reader -> server   a name's length, the name of a block
server -> reader   the file's length, 0 if it is not there; the file
```

With NIXL, whose metadata is the answer to a name that no block has:

```text
reader -> server   a name's length, AGENT
server -> reader   the metadata's length, 0 if there is no agent; the metadata

reader -> server   a name's length, LENT and the name of a block
server -> reader   the file's length, 0 if it is not there; the address where the reader may read
                   it, or 0 and the file
reader -> server   HAS_READ, or HAS_FAILED: the memory is the server's again
```

A server that knows no NIXL has no block of these names.
"""

import hashlib
import hmac
import secrets
import socket
import struct
import time

MAGIC = b"SQDRPR01"
RANDOM_BYTES = 32
PROOF_BYTES = 32
GREETING_SECONDS = 1.0  # for a connection to prove itself
NAME_LENGTH = struct.Struct(">H")
FILE_LENGTH = struct.Struct(">I")
ADDRESS = struct.Struct(">Q")
AGENT, LENT = "nixl", "nixl:"
HAS_READ, HAS_FAILED = b"+", b"-"


def receive(stream: socket.socket, num_bytes: int, deadline: float) -> bytearray:
    """So many bytes, all of them before `deadline` (time.monotonic). Raises ConnectionError at the
    end of the stream, TimeoutError, OSError.
    """
    data = bytearray(num_bytes)
    rest = memoryview(data)
    while len(rest):
        _limit(stream, deadline)
        count = stream.recv_into(rest)
        if count == 0:
            raise ConnectionError("the connection has ended")
        rest = rest[count:]
    return data


def send(stream: socket.socket, data: bytes, deadline: float) -> None:
    """Raises TimeoutError, OSError."""
    _limit(stream, deadline)
    stream.sendall(data)


def greet_reader(stream: socket.socket, secret: bytes, deadline: float) -> bool:
    """The server's end: whether the reader knows the secret. Raises OSError."""
    ours = secrets.token_bytes(RANDOM_BYTES)
    send(stream, MAGIC + ours, deadline)
    theirs = bytes(receive(stream, RANDOM_BYTES, deadline))
    if not hmac.compare_digest(receive(stream, PROOF_BYTES, deadline), _proof(secret, b"reader", ours + theirs)):
        return False
    send(stream, _proof(secret, b"server", ours + theirs), deadline)
    return True


def greet_server(stream: socket.socket, secret: bytes, deadline: float) -> None:
    """The reader's end. Raises ConnectionError unless the server knows the secret, and OSError."""
    if receive(stream, len(MAGIC), deadline) != MAGIC:
        raise ConnectionError("it serves no blocks")
    theirs, ours = bytes(receive(stream, RANDOM_BYTES, deadline)), secrets.token_bytes(RANDOM_BYTES)
    send(stream, ours + _proof(secret, b"reader", theirs + ours), deadline)
    if not hmac.compare_digest(receive(stream, PROOF_BYTES, deadline), _proof(secret, b"server", theirs + ours)):
        raise ConnectionError("it does not know the secret")


def _proof(secret: bytes, whose: bytes, drawn: bytes) -> bytes:
    return hmac.digest(secret, MAGIC + whose + drawn, hashlib.sha256)


def _limit(stream: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    stream.settimeout(left)
