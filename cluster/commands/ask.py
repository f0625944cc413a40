"""Asks a server on this machine one question."""

import http.client
import json
from collections.abc import Iterator

from cluster.sockets import LOOPBACK
from engine.errors import InvalidConfig


def ask(port: int, model: str, question: str) -> Iterator[str]:
    """The answer of a server on this machine as it arrives; raises InvalidConfig with any other
    response.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=120)
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise InvalidConfig(f"the server answered {response.status}: {response.read().decode()}")
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            break
        if data:
            event = json.loads(data)
            if "error" in event:
                raise InvalidConfig(f"the server answered: {event['error']['message']}")
            yield from (choice["delta"].get("content") or "" for choice in event["choices"])
    connection.close()
