"""Inputs drawn by schemathesis from the server's own description, and by hypothesis from none."""

import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.cluster.api.test_fuzz import FIELDS, messages, values
from tests.end_to_end.fuzz import tools
from tests.end_to_end.fuzz.forms import forms, hostile
from tests.end_to_end.fuzz.judge import GIVEN_UP_SECONDS, Judge

ROUTES = ("/v1/chat/completions", "/v1/completions")
A_FEW = 5  # inputs
ASKED = {"messages": [{"role": "user", "content": "Hello?"}]}
MOST = {
    **{"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "min_tokens": 4},
    **{"n": 3, "best_of": 3, "beam_width": 3},
}


class Drawn:
    """Sends what is drawn, one input after the other, by one connection that is kept."""

    def __init__(self, url: str, judge: Judge, after_each: Callable[[], None], number: int) -> None:
        """`after_each` is called after each input; `number` decides what is drawn."""
        self._url = url
        self._judge = judge
        self._after_each = after_each
        self._number = number
        self._session = requests.Session()

    def by_description(self, mode: GenerationMode, count: int) -> None:
        """About so many inputs, divided among the routes that take a body, and a few for the
        others.
        """
        document = requests.get(f"{self._url}/openapi.json", timeout=GIVEN_UP_SECONDS).json()
        operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
        num_posts = sum(operation.method == "post" for operation in operations)
        for operation in operations:
            has_inputs = operation.method == "post" or ("{" in operation.path and mode is GenerationMode.POSITIVE)
            if has_inputs:
                strategy = operation.as_strategy(generation_mode=mode)
                each = max(count // num_posts, A_FEW) if operation.method == "post" else A_FEW
                self._draw(strategy, each, self._send_case)

    def by_fields(self, count: int) -> None:
        """Bodies with any values in known fields."""
        prompts = st.fixed_dictionaries({"prompt": st.text() | values, "messages": messages | values})
        fields = st.dictionaries(st.sampled_from(FIELDS), values, max_size=4)
        bodies = st.tuples(prompts, fields).map(lambda parts: parts[0] | parts[1])
        self._draw(st.tuples(st.sampled_from(ROUTES), bodies), count, self._send_body)

    def by_forms(self, count: int) -> None:
        """Answers that are to have a form, which may be none."""
        for form in hostile():
            self._send_body((ROUTES[0], ASKED | form))
            self._after_each()
        self._draw(forms.map(lambda form: (ROUTES[0], ASKED | form)), count, self._send_body)

    def by_tools(self, count: int) -> None:
        """Tools and calls that are not what clients send."""
        self._draw(tools.bodies().map(lambda body: (ROUTES[0], body)), count, self._send_body)

    def by_bytes(self, count: int) -> None:
        """Bodies that are hardly ever JSON."""
        damaged = st.tuples(st.just(json.dumps({"prompt": "ä", "stop": ["a"]}).encode()), st.integers(0), st.binary())
        content = st.binary() | damaged.map(lambda parts: parts[0][: parts[1] % len(parts[0])] + parts[2])
        self._draw(st.tuples(st.sampled_from(ROUTES), content), count, self._send_bytes)

    def _draw(self, strategy: st.SearchStrategy[Any], count: int, send: Callable[[Any], None]) -> None:
        @seed(self._number)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def draw(drawn: Any) -> None:
            send(drawn)
            self._after_each()
            gc.collect(1)

        with uncollected():
            draw()

    def _send_case(self, case: schemathesis.Case) -> None:
        is_allowed = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
        case.body = cheap(whole(case.body) if is_allowed else case.body)
        request = requests.Request(**case.as_transport_kwargs(base_url=self._url))
        self._send(request, is_allowed=is_allowed)

    def _send_body(self, drawn: tuple[str, dict[str, Any]]) -> None:
        route, body = drawn
        self._send_bytes((route, json.dumps(cheap(body)).encode()))

    def _send_bytes(self, drawn: tuple[str, bytes]) -> None:
        route, content = drawn
        headers = {"content-type": "application/json"}
        self._send(requests.Request("POST", self._url + route, data=content, headers=headers), is_allowed=False)

    def _send(self, request: requests.Request, *, is_allowed: bool) -> None:
        prepared = self._session.prepare_request(request)
        what = f"{prepared.method} {prepared.url} {dict(prepared.headers)} {prepared.body!r}"
        sent = time.monotonic()
        try:
            answer = self._session.send(prepared, timeout=GIVEN_UP_SECONDS, stream=True)
            content = read_whole(answer, sent + GIVEN_UP_SECONDS)
        except requests.RequestException as error:
            self._judge.num_inputs += 1
            self._judge.fail(f"no answer: {error!r}", what)
            return
        seconds = time.monotonic() - sent
        self._judge.check(what, answer.status_code, content, seconds, is_allowed=is_allowed)


def read_whole(answer: requests.Response, deadline: float) -> bytes:
    """Raises RequestException if it has no end by then, even if some of it comes now and then."""
    content = b""
    with answer:
        for chunk in answer.iter_content(1 << 16):
            content += chunk
            if time.monotonic() > deadline:
                raise requests.Timeout(f"no end after {len(content)} bytes")
    return content


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected but where it is asked for.

    Hypothesis has a callback in Python at each collection, which lets other threads run. In the
    midst of Python's own `ast.parse` that is a SystemError ("recursion depth mismatch") if one of
    them parses too, as Python 3.11 does for the lines of a traceback (CPython issue 106905).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cheap(body: Any) -> Any:
    """The body, asking for few tokens where it asks for valid numbers of them, or for no number."""
    if not isinstance(body, dict):
        return body
    less = {name: min(value, MOST[name]) for name, value in body.items() if name in MOST and is_count(value)}
    if body.get("max_completion_tokens") is None:
        less.setdefault("max_tokens", body.get("max_tokens") or MOST["max_tokens"])
    if "input" in body and body.get("max_output_tokens") is None:
        less["max_output_tokens"] = MOST["max_output_tokens"]
    return body | less


def is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def whole(value: Any) -> Any:
    """With 1 for 1.0: JSON Schema takes both for integers, and the API takes the first."""
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
