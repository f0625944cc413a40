"""What a server may answer."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.api.error_shapes import NO_THREADS

HANG_SECONDS = 5.0  # to an answer's last byte
GIVEN_UP_SECONDS = 60.0  # a client waits no longer
CANARY_EVERY = 100  # inputs
TOLD = {"server_overloaded", "deadline_exceeded"}  # codes of statuses from 500 on that are no failure
TYPES = {"invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"}
ANTHROPICS = {  # of the same statuses
    *("invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large"),
    *("rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
}
HAPROXYS_PAGES = re.compile(rb"\s*<html><body><h1>(400 Bad request|408 Request Time-out)</h1>.*</html>\s*", re.DOTALL)
# What cannot be combined with beam_width.
WITHOUT_BEAMS = {
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "stream", "n", "stop", "logprobs", "beam_width", "thinking_token_budget"),
}
# Why a request that the OpenAPI document allows may be refused: what a schema of single fields
# cannot say. By the error's code, with the parameters it may name (None: any).
FORMS: set[str | None] = {
    *("response_format", "structured_outputs", "text"),  # the last is the Responses API's
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
}
REASONS: dict[str, set[str | None] | None] = {
    "model_not_found": None,  # any text is a name
    "unknown_request": None,
    "unknown_stream": None,
    "response_not_found": None,
    "item_not_found": None,
    "context_length_exceeded": None,
    "no_token_left": None,  # of parameters that exclude each other
    "empty_prompt": {"prompt"},  # a text without a token, as the tokenizer has it
    "server_overloaded": None,
    "deadline_exceeded": None,  # of a timeout that is too short
    "invalid_value": {
        *("prompt", "allowed_token_ids", "stop_token_ids", "logit_bias", "bad_words"),  # ids beyond the vocabulary
        *("top_logprobs", "stream_options", "best_of", "min_tokens", "max_completion_tokens"),  # without another field
        *("messages", "tools"),  # JSON in JSON; schemas and names
        *("tool_choice", "continue_final_message"),  # without tools, without such a message
        "text_1",  # not as many texts as text_2
        *("input", "tokens"),  # ids beyond the vocabulary, JSON in JSON
        *("thinking", "chat_template_kwargs", "add_generation_prompt"),  # beside another field
        *("reasoning_effort", "documents"),  # beside a prompt
        *WITHOUT_BEAMS,
        *FORMS,
    },
    "array_above_max_length": {"tools"},  # all of their schemas together
    # Of a form that cannot be compiled, or is none.
    **dict.fromkeys(("invalid_json_schema", "schema_too_complex"), FORMS),
    "unsupported_parameter": {*FORMS, "tools", "thinking_token_budget", "thinking"},  # of a model that has none
    "invalid_type": {*FORMS, "include", "documents", "tools", "messages"},  # of their parts
    "empty_string": FORMS,
    "empty_array": {*FORMS, "messages", "input"},
    "missing_required_parameter": {*FORMS, "prompt", "tools", "messages"},  # or messages; of their parts
    "unsupported_value": {"model", "reasoning_effort", "store"},  # of a model that cannot judge, of templates
    "integer_below_min_value": {"best_of"},  # below n
    "integer_above_max_value": {"min_tokens", "n", "dimensions"},  # above max_tokens, best_of, the model's
    "decimal_below_min_value": {"temperature"},  # between 0 and the smallest that is computed
}


@dataclass
class Judge:
    """Counts answers, and what is wrong with them. `hang_seconds`: a test beside others, whose
    machine may be busy, allows what a client waits for.
    """

    hang_seconds: float = HANG_SECONDS
    num_inputs: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    refused: Counter[tuple[str, str | None]] = field(default_factory=Counter)  # of what the document allows
    slowest: float = 0.0  # seconds to an answer's last byte
    slowest_what: str = ""  # the input of that answer
    gaps: Mapping[str, float] = field(default_factory=dict)  # of a stream beside the inputs
    num_series: tuple[int, int] = (0, 0)  # of metrics, before and after
    failures: list[str] = field(default_factory=list)

    def check(
        self,
        what: str,
        status: int,
        body: bytes,
        seconds: float,
        *,
        is_allowed: bool = False,
        is_http: bool = True,
    ) -> None:
        """One answer to `what`, whose last byte came after `seconds`; `is_allowed`: the document
        allows what was asked; without `is_http` HAProxy's parser may answer by a page of its own.
        """
        self.num_inputs += 1
        self.statuses[status] += 1
        if seconds > self.slowest:
            self.slowest, self.slowest_what = seconds, what
        if seconds > self.hang_seconds:
            self.fail(f"hung for {seconds:.1f} s, then status {status}", what)
        if status < 400:
            return
        error = read_error(body)
        if error is None and not is_http and status in (400, 408) and HAPROXYS_PAGES.fullmatch(body):
            return
        if error is None:
            self.fail(f"status {status} with the body {body[:200]!r}", what)
            return
        if status >= 500 and error["code"] not in TOLD:
            self.fail(f"status {status}: {error}", what)
        elif is_allowed:
            param = None if error["param"] is None else error["param"].split("[")[0].split(".")[0]
            self.refused[error["code"], param] += 1
            known = REASONS.get(error["code"], set())
            if known is not None and param not in known:
                self.fail(f"refused what the document allows: {error}", what)

    def check_gaps(self, gaps: Mapping[str, float]) -> None:
        """Of the stream beside all inputs; see `neighbour`."""
        self.gaps = gaps
        if not gaps.get("count"):
            self.fail("the stream beside the inputs had no events", "")
        elif gaps["too_long"]:
            self.fail(f"the stream beside the inputs waited {gaps['max']:.2f} s for a token", "")

    def fail(self, why: str, what: str) -> None:
        self.failures.append(f"{why}\n    {what[:20_000]}")

    def lines(self) -> list[str]:
        """The outcome, to be printed."""
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        reasons = ", ".join(f"{code} {param or ''}: {count}" for (code, param), count in self.refused.most_common())
        return [
            f"{self.num_inputs} inputs; statuses {statuses}",
            f"slowest answer {self.slowest:.2f} s: {self.slowest_what[:200]}",
            "between the tokens of a stream beside them, s: "
            + ", ".join(f"{name} {figure:.3g}" for name, figure in self.gaps.items()),
            f"series of metrics: {self.num_series[0]} before, {self.num_series[1]} after",
            f"refused though the document allows it: {reasons or 'nothing'}",
            *self._different()[:20],
            f"{len(self.failures)} failures",
        ]

    def _different(self) -> list[str]:
        """The first failure of each kind: alike but for numbers."""
        by_kind = {re.sub(r"\d+", "N", failure.split("\n")[0]): failure for failure in reversed(self.failures)}
        return list(reversed(by_kind.values()))


def read_error(body: bytes) -> dict[str, Any] | None:
    """The error of an answer in OpenAI's form, or in Anthropic's with our fields beside its own;
    None if it is none.
    """
    try:
        answer = json.loads(body)
        error = answer["error"]
        texts = [
            error["message"],
            error["type"],
            *(error[name] for name in ("param", "code") if error[name] is not None),
        ]
    except (ValueError, TypeError, KeyError):
        return None
    details = {"details"} if error["code"] == NO_THREADS else set()
    is_whole = set(error) - details == {"message", "type", "param", "code"}
    is_whole = is_whole and all(isinstance(text, str) for text in texts)
    types = ANTHROPICS if answer.get("type") == "error" else TYPES
    return error if is_whole and error["message"] and error["type"] in types else None
