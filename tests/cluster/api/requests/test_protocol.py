"""Every field with values it does not take: the status, the code and the field that the caller is
told.
"""

from typing import Any

import httpx
import pytest

from cluster.api.requests.unsupported import Unsupported, UnsupportedInChat, UnsupportedInCompletions
from tests.cluster.api.scripted import MAX_MODEL_LEN, MODEL, VOCAB_SIZE, Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello?"}


def allowing(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


TOO_MANY = "array_above_max_length"
TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": ""}}]}
HUGE = 2**63
SO_FAR = "stream_options.continuous_usage_stats"
# Fields that both routes take: the body's fields, the code, and the field at fault where it is not
# the first of them.
COMMON: list[tuple[Any, ...]] = [
    ({"model": 1}, "invalid_type"),
    ({"model": [MODEL]}, "invalid_type"),
    ({"model": ""}, "empty_string"),
    *[({"max_tokens": value}, "integer_below_min_value") for value in (0, -1)],
    *[({"max_tokens": value}, "invalid_type") for value in (1.5, 1.0, "5", True, [5], {})],
    ({"max_tokens": HUGE}, "integer_above_max_value"),
    ({"max_tokens": 10**300}, "integer_above_max_value"),
    ({"max_tokens": HUGE - 1}, "context_length_exceeded"),
    ({"max_tokens": MAX_MODEL_LEN}, "context_length_exceeded"),
    ({"temperature": -0.01}, "decimal_below_min_value"),
    ({"temperature": 1e-320}, "decimal_below_min_value"),
    ({"temperature": 2.01}, "decimal_above_max_value"),
    ({"temperature": 10**300}, "decimal_above_max_value"),
    *[({"temperature": value}, "invalid_type") for value in ("1", True, [], {})],
    *[({"top_p": value}, "decimal_below_min_value") for value in (-1, 0, 0.0)],
    ({"top_p": 1.1}, "decimal_above_max_value"),
    ({"top_p": "1"}, "invalid_type"),
    *[({"n": value}, "integer_below_min_value") for value in (0, -1)],
    *[({"n": value}, "integer_above_max_value") for value in (129, 2**31)],
    *[({"n": value}, "invalid_type") for value in (1.0, "2", True)],
    *[({"stream": value}, "invalid_type") for value in ("true", 1, 0, [])],
    ({"stream_options": {"include_usage": True}}, "invalid_value"),
    ({"stream_options": {"include_usage": True}, "stream": False}, "invalid_value"),
    ({"stream_options": "x", "stream": True}, "invalid_type"),
    ({"stream_options": {"include_usage": "x"}, "stream": True}, "invalid_type", "stream_options.include_usage"),
    ({"stream_options": {"often": True}, "stream": True}, "unknown_parameter", "stream_options.often"),
    ({"stop": ["a"] * 17}, "array_above_max_length"),
    ({"stop": ""}, "empty_string"),
    ({"stop": [""]}, "empty_string", "stop[0]"),
    ({"stop": ["a", 1]}, "invalid_type", "stop[1]"),
    *[({"stop": value}, "invalid_type") for value in (1, {}, True)],
    ({"stop": "x" * 10**6}, "string_above_max_length"),
    *[({"logit_bias": {key: 1}}, "invalid_value") for key in ("abc", "-1", "1.0", "01", "", " 1", "1\n", "٣")],
    ({"logit_bias": {str(VOCAB_SIZE): 1}}, "invalid_value"),
    ({"logit_bias": {"9" * 100: 1}}, "invalid_value"),
    ({"logit_bias": {"1": 101}}, "decimal_above_max_value"),
    ({"logit_bias": {"1": -101}}, "decimal_below_min_value"),
    *[({"logit_bias": {"1": value}}, "invalid_type") for value in ("x", None, True)],
    ({"logit_bias": [1]}, "invalid_type"),
    ({"logit_bias": {str(key): 1 for key in range(1025)}}, "object_above_max_properties"),
    *[({name: 2.01}, "decimal_above_max_value") for name in ("presence_penalty", "frequency_penalty")],
    *[({name: -2.01}, "decimal_below_min_value") for name in ("presence_penalty", "frequency_penalty")],
    *[({name: "0"}, "invalid_type") for name in ("presence_penalty", "frequency_penalty")],
    ({"seed": HUGE}, "integer_above_max_value"),
    ({"seed": -HUGE - 1}, "integer_below_min_value"),
    *[({"seed": value}, "invalid_type") for value in (1.5, "1", True)],
    ({"top_k": -2}, "integer_below_min_value"),
    ({"top_k": 1.0}, "invalid_type"),
    ({"min_p": 1.1}, "decimal_above_max_value"),
    ({"repetition_penalty": 0}, "decimal_below_min_value"),
    ({"stop_token_ids": []}, "empty_array"),
    ({"stop_token_ids": [True]}, "invalid_type", "stop_token_ids[0]"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "invalid_value"),
    ({"stop_token_ids": ["x"] * 10**5}, "invalid_type", "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "empty_array"),
    ({"allowed_token_ids": [-1]}, "integer_below_min_value", "allowed_token_ids[0]"),
    ({"allowed_token_ids": [VOCAB_SIZE]}, "invalid_value"),
    ({"bad_words": [""]}, "empty_string", "bad_words[0]"),
    ({"bad_words": ["x"] * 129}, "array_above_max_length"),
    ({"ignore_eos": 1}, "invalid_type"),
    ({"min_tokens": -1}, "integer_below_min_value"),
    ({"min_tokens": 6, "max_tokens": 5}, "integer_above_max_value"),
    ({"prompt_logprobs": 21}, "integer_above_max_value"),
    ({"stream": True, "prompt_logprobs": 1}, "invalid_value"),
    ({"skip_special_tokens": "no"}, "invalid_type"),
    ({"include_stop_str_in_output": 0}, "invalid_type"),
    ({"beam_width": 0}, "integer_below_min_value"),
    ({"beam_width": 2, "use_beam_search": False}, "invalid_value"),
    ({"stream": True, "beam_width": 2}, "invalid_value"),
    ({"top_p": 0.5, "beam_width": 2}, "invalid_value"),
    ({"n": 3, "beam_width": 2}, "invalid_value"),
    ({"priority": -1}, "integer_below_min_value"),
    ({"priority": 2**31}, "integer_above_max_value"),
    ({"priority": "high"}, "invalid_type"),
    *[({"cache_salt": value}, "invalid_value") for value in ("", "sälz", "x" * 257, "../x", "a b", "a\n")],
    ({"cache_salt": 1}, "invalid_type"),
    ({"user": 1}, "invalid_type"),
    ({"metadata": []}, "invalid_type"),
    ({"metadata": {"a": 1}}, "invalid_type"),
    ({"metadata": {str(key): "" for key in range(17)}}, "object_above_max_properties"),
    ({"stream_options": {"continuous_usage_stats": True}, "stream": True}, "invalid_value", SO_FAR),
    ({"stream_options": {"continuous_usage_stats": 1}, "stream": True}, "invalid_type", SO_FAR),
    (
        {"stream_options": {"include_obfuscation": 1}, "stream": True},
        "invalid_type",
        "stream_options.include_obfuscation",
    ),
    ({"stop_token_ids": [1] * (VOCAB_SIZE + 1)}, "array_above_max_length"),
    ({"allowed_token_ids": [1] * (VOCAB_SIZE + 1)}, "array_above_max_length"),
    ({"store": "no"}, "invalid_type"),
    ({"service_tier": "free"}, "unsupported_value"),
    ({"service_tier": 1}, "invalid_type"),
    ({"response_format": {"type": "x"}}, "invalid_value", "response_format.type"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"response_format": "text"}, "invalid_type"),
    ({"response_format": {"type": []}}, "invalid_type", "response_format.type"),
    ({"response_format": {"type": "grammar"}}, "unsupported_parameter", "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    ({"structured_outputs": []}, "invalid_type"),
    ({"structured_outputs": {"json": 5}}, "invalid_type", "structured_outputs.json"),
    ({"guided_regex": ""}, "empty_string"),
    *[({name: "x"}, "unsupported_parameter") for name in Unsupported.model_fields],
    ({"mirostat": True}, "unsupported_parameter"),
    *[({name: [1]}, "unsupported_parameter") for name in ("logits_processors", "prompt_embeds", "logprob_token_ids")],
    ({"thinking_token_budget": -2}, "integer_below_min_value"),
    ({"detokenize": False}, "unsupported_parameter"),
    *[({"truncate_prompt_tokens": value}, "integer_below_min_value") for value in (0, -2)],
    ({"truncate_prompt_tokens": "5"}, "invalid_type"),
    ({"truncate_prompt_tokens": 2**31}, "integer_above_max_value"),
    ({"truncate_prompt_tokens": MAX_MODEL_LEN}, "context_length_exceeded"),
    ({"truncate_prompt_tokens": MAX_MODEL_LEN - 4, "max_tokens": 5}, "context_length_exceeded"),
    *[({name: 1}, "invalid_type") for name in ("return_token_ids", "add_special_tokens")],
    ({"repeat_penalty": 1.1}, "unsupported_parameter"),
]
OF_CHAT: list[tuple[Any, ...]] = [
    ({"messages": None}, "invalid_type"),
    ({"messages": []}, "empty_array"),
    ({"messages": {}}, "invalid_type"),
    ({"messages": "Hello?"}, "invalid_type"),
    ({"messages": [None]}, "invalid_type", "messages[0]"),
    ({"messages": [None] * 8192}, "invalid_type", "messages[0]"),
    ({"messages": [None] * 10**5}, "array_above_max_length"),
    ({"messages": [{"role": "user", "content": [None] * 10**5}]}, "array_above_max_length", "messages[0].content"),
    ({"messages": [[]]}, "invalid_type", "messages[0]"),
    ({"messages": [{}]}, "missing_required_parameter", "messages[0].role"),
    ({"messages": [USER, {"role": "wizard", "content": ""}]}, "invalid_value", "messages[1].role"),
    ({"messages": [{"role": 1, "content": ""}]}, "invalid_type", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "user", "content": 1}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "empty_array", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [None]}]}, "invalid_type", "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "invalid_value", "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "invalid_type",
        "messages[0].content[0].text",
    ),
    *[
        (
            {"messages": [{"role": "user", "content": [{"type": kind, kind: {}}]}]},
            "unsupported_content",
            "messages[0].content[0].type",
        )
        for kind in ("image_url", "input_audio", "file")
    ],
    ({"messages": [{"role": "function", "content": "4"}]}, "unsupported_value", "messages[0].role"),
    (
        {"messages": [{"role": "tool", "content": "4"}]},
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "missing_required_parameter", "messages[0].content"),
    *[
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}, code, f"messages[0].{param}")
        for call, code, param in (
            ({"id": "x"}, "missing_required_parameter", "tool_calls[0].function"),
            ({"function": {"name": "f", "arguments": "{}"}}, "missing_required_parameter", "tool_calls[0].id"),
            ({"id": "x", "function": {"name": "f"}}, "missing_required_parameter", "tool_calls[0].function.arguments"),
            (
                {"id": "x", "function": {"name": "f", "arguments": {}}},
                "invalid_type",
                "tool_calls[0].function.arguments",
            ),
            (
                {"id": "x", "function": {"name": "f", "arguments": "," * 20_000}},
                "invalid_value",
                "tool_calls[0].function",
            ),
            ({"id": "x", "type": "custom"}, "unsupported_value", "tool_calls[0].type"),
        )
    ],
    ({"messages": [{**USER, "tool_calls": [{"id": "x"}]}]}, "unsupported_parameter", "messages[0].tool_calls"),
    *[
        (
            {"messages": [{"role": "assistant", "content": "x", name: value}]},
            "unsupported_parameter",
            f"messages[0].{name}",
        )
        for name, value in (("refusal", "No."), ("audio", {"id": "x"}), ("annotations", [{}]), ("function_call", {}))
    ],
    ({"prompt_cache_retention": "for ever"}, "unsupported_value"),
    ({"messages": [USER] * (MAX_MODEL_LEN + 1)}, "context_length_exceeded"),
    ({"messages": [USER] * 8192}, "context_length_exceeded"),
    ({"messages": [USER] * 8193}, "array_above_max_length"),
    ({"max_completion_tokens": 0}, "integer_below_min_value"),
    ({"max_completion_tokens": MAX_MODEL_LEN}, "context_length_exceeded"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "invalid_value"),
    ({"logprobs": 1}, "invalid_type"),
    ({"logprobs": "true"}, "invalid_type"),
    ({"top_logprobs": 1}, "invalid_value"),
    ({"top_logprobs": 1, "logprobs": False}, "invalid_value"),
    ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value"),
    ({"top_logprobs": -1, "logprobs": True}, "integer_below_min_value"),
    ({"top_logprobs": "1", "logprobs": True}, "invalid_type"),
    ({"top_logprobs": True, "logprobs": True}, "invalid_type"),
    *[({name: "x"}, "unsupported_parameter") for name in UnsupportedInChat.model_fields],
    ({"tools": [TOOL]}, "unsupported_parameter"),  # the model's template has none
    ({"tools": TOOL}, "invalid_type"),
    ({"tools": [TOOL] * 129}, "array_above_max_length"),
    ({"tools": [TOOL, TOOL]}, "invalid_value"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "unsupported_value", "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
    *[
        ({"tools": [{"type": "function", "function": {"name": "f"} | fields}]}, code, f"tools[0].function.{param}")
        for fields, code, param in (
            ({"name": "no name"}, "invalid_value", "name"),
            ({"name": "x" * 129}, "invalid_value", "name"),
            ({"parameters": []}, "invalid_type", "parameters"),
            ({"parameters": {"type": "string"}}, "invalid_value", "parameters"),
            ({"parameters": {"properties": 1}}, "invalid_value", "parameters"),
            ({"parameters": {"properties": {"a": {"type": "strin"}}}}, "invalid_value", "parameters"),
            ({"parameters": {"properties": {"a": {"maxLength": -1}}}}, "invalid_value", "parameters"),
        )
    ],
    ({"tool_choice": "some"}, "unsupported_value"),
    ({"tool_choice": 1}, "unsupported_value"),
    ({"tool_choice": {}}, "missing_required_parameter", "tool_choice.type"),
    ({"tool_choice": allowing()}, "empty_array", "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowing("f", mode="any")}, "unsupported_value", "tool_choice.allowed_tools.mode"),
    ({"verbosity": "mute"}, "unsupported_value"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "unsupported_value", "tool_choice.type"),
    *[
        ({"tool_choice": value}, "invalid_value")  # there are no tools
        for value in ("required", {"type": "function", "function": {"name": "f"}}, allowing("f"))
    ],
    ({"echo": 1}, "invalid_type"),
    ({"messages": [USER | {"name": 1}]}, "invalid_type", "messages[0].name"),
    ({"prediction": {"type": "x", "content": ""}}, "unsupported_value", "prediction.type"),
    ({"prediction": {"type": "content"}}, "missing_required_parameter", "prediction.content"),
    ({"continue_final_message": True}, "invalid_value"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "invalid_value"),
    ({"chat_template_kwargs": {"tools": []}}, "invalid_value"),
    *[({"chat_template_kwargs": {name: 1}}, "invalid_value") for name in ("a b", "self", "range", "namespace")],
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{}] * 5000}}}]}, TOO_MANY),
    ({"chat_template_kwargs": [1]}, "invalid_type"),
    ({"documents": ["a"]}, "invalid_type", "documents[0]"),
    ({"reasoning_effort": "lots"}, "unsupported_value"),
    ({"best_of": 2}, "unsupported_parameter"),
    ({"best_of": True}, "unsupported_parameter"),
    ({"parallel_tool_calls": "yes"}, "invalid_type"),
    ({"modalities": ["audio"]}, "unsupported_value", "modalities[0]"),
    ({"modalities": ["text", "audio"]}, "array_above_max_length"),
    ({"modalities": "text"}, "invalid_type"),
]
OF_COMPLETIONS: list[tuple[Any, ...]] = [
    ({"prompt": None}, "invalid_type"),
    ({"prompt": 1}, "invalid_type"),
    ({"prompt": {}}, "invalid_type"),
    ({"prompt": []}, "empty_array"),
    ({"prompt": [[]]}, "empty_array", "prompt[0]"),
    ({"prompt": [None]}, "invalid_type", "prompt[0]"),
    ({"prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": ["a", 1]}, "invalid_type", "prompt[1]"),
    ({"prompt": [[1], "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": [1, True]}, "invalid_type", "prompt[1]"),
    ({"prompt": [True]}, "invalid_type", "prompt[0]"),
    ({"prompt": [1, 2.0]}, "invalid_type", "prompt[1]"),
    ({"prompt": [-1]}, "integer_below_min_value", "prompt[0]"),
    ({"prompt": [HUGE]}, "integer_above_max_value", "prompt[0]"),
    ({"prompt": [VOCAB_SIZE]}, "invalid_value"),
    ({"prompt": [[1], [VOCAB_SIZE]]}, "invalid_value", "prompt[1]"),
    ({"prompt": [1] * MAX_MODEL_LEN}, "context_length_exceeded"),
    ({"prompt": [1] * 10**5}, "context_length_exceeded"),
    ({"prompt": [[1], [1] * MAX_MODEL_LEN]}, "context_length_exceeded", "prompt[1]"),
    ({"max_tokens": 10, "prompt": [1] * (MAX_MODEL_LEN - 9)}, "context_length_exceeded"),
    ({"prompt": ["a"] * 1025}, "array_above_max_length"),
    *[({name: "x"}, "unsupported_parameter") for name in UnsupportedInCompletions.model_fields],
    ({"echo": 1}, "invalid_type"),
    ({"best_of": 0}, "integer_below_min_value"),
    ({"best_of": 129}, "integer_above_max_value"),
    ({"best_of": 1, "n": 2}, "integer_below_min_value"),
    ({"best_of": 2, "stream": True}, "invalid_value"),
    ({"logprobs": True}, "invalid_type"),
    ({"logprobs": 21}, "integer_above_max_value"),
    ({"logprobs": -1}, "integer_below_min_value"),
]
CASES = [
    *[(CHAT, *case) for case in COMMON + OF_CHAT],
    *[(COMPLETIONS, *case) for case in COMMON + OF_COMPLETIONS],
]


def good(route: str) -> dict[str, Any]:
    return {"model": MODEL, **({"messages": [USER]} if route == CHAT else {"prompt": "Hello?"})}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].split('/')[2]}-{str(case[1])[:40]}")
def test_refused(server: Running, http: httpx.Client, case: tuple[Any, ...]) -> None:
    route, fields, code, *at_fault = case
    response = http.post(route, json=good(route) | fields)
    error = response.json()["error"]
    [param] = at_fault or [next(iter(fields))]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 500
    assert server.service.generated == []


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_required(http: httpx.Client, route: str, name: str) -> None:
    fields = good(route)
    if fields.pop(name, None) is not None:
        error = http.post(route, json=fields).json()["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", name)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"n": 2, "temperature": 0}),
    (CHAT, {"temperature": 1}),
    (CHAT, {"top_k": -1}),
    (CHAT, {"top_logprobs": 0}),
    (CHAT, {"top_logprobs": 0, "logprobs": False}),
    (CHAT, {"stop": []}),
    (CHAT, {"stop": ["a"] * 16}),
    (CHAT, {"messages": [USER | {"name": "Ada"}]}),
    (CHAT, {"prediction": {"type": "content", "content": [{"type": "text", "text": "42"}]}}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": "It is"}], "echo": True}),
    (CHAT, {"messages": [USER] * (2 * MAX_MODEL_LEN), "truncate_prompt_tokens": -1, "max_tokens": 5}),
    *[
        (route, {"return_token_ids": True, "add_special_tokens": value, "truncate_prompt_tokens": 5})
        for route in (CHAT, COMPLETIONS)
        for value in (True, False)
    ],
    *[
        (route, {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2})
        for route in (CHAT, COMPLETIONS)
    ],
    (COMPLETIONS, {"prompt": [1] * (2 * MAX_MODEL_LEN), "truncate_prompt_tokens": -1, "max_tokens": 5}),
    (COMPLETIONS, {"prompt": [[1], [1] * (2 * MAX_MODEL_LEN)], "truncate_prompt_tokens": MAX_MODEL_LEN - 16}),
    (CHAT, {"messages": [{"role": "user", "content": ""}]}),
    (CHAT, {"messages": [USER] * (MAX_MODEL_LEN - 1)}),
    (CHAT, {"messages": [{**USER, "refusal": None, "tool_calls": None}], "frobnicate": None}),
    (CHAT, {"max_tokens": MAX_MODEL_LEN - 1}),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 5}),
    (CHAT, {"modalities": ["text"]}),
    (CHAT, {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "echo": False, "best_of": 1}),
    (CHAT, {"messages": [{**USER, "tool_calls": [], "annotations": [], "refusal": "", "audio": None}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}]}]}),
    (CHAT, {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}}),
    (CHAT, {"chat_template_kwargs": {}, "add_generation_prompt": True, "continue_final_message": False}),
    (CHAT, {"add_special_tokens": False, "documents": [], "reasoning_effort": "medium", "verbosity": "medium"}),
    (CHAT, {"include_reasoning": True, "add_generation_prompt": False, "reasoning_effort": "none"}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "a", "text": "b"}]}),
    (CHAT, {"messages": [USER, CALLS, {"role": "tool", "tool_call_id": "x", "name": "f", "content": "4"}]}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": "It"}], "continue_final_message": True}),
    (CHAT, {"tools": [TOOL], "tool_choice": "none"}),
    *[
        (route, {"stream": True, "stream_options": {"include_obfuscation": value, "continuous_usage_stats": False}})
        for route in (CHAT, COMPLETIONS)
        for value in (True, False)
    ],
    *[(route, dict.fromkeys(Unsupported.model_fields)) for route in (CHAT, COMPLETIONS)],
    *[
        (route, {"response_format": {"type": "text"}, "service_tier": "auto", "store": False, "n": 1, "user": "me"})
        for route in (CHAT, COMPLETIONS)
    ],
    *[
        (route, {"safety_identifier": "a", "prompt_cache_key": "b", "metadata": {}, "logit_bias": {}, "mirostat": 0})
        for route in (CHAT, COMPLETIONS)
    ],
    *[
        (
            route,
            {
                "logits_processors": [],
                "return_token_ids": False,
                "detokenize": True,
                "thinking_token_budget": -1,
                "repeat_penalty": 1.0,
            },
        )
        for route in (CHAT, COMPLETIONS)
    ],
    (CHAT, dict.fromkeys(UnsupportedInChat.model_fields)),
    (COMPLETIONS, dict.fromkeys(UnsupportedInCompletions.model_fields)),
    (COMPLETIONS, {"suffix": "", "add_special_tokens": True, "best_of": 1}),
    (CHAT, {"user": "me", "metadata": {"a": "b"}, "parallel_tool_calls": True, "tools": None}),
    (CHAT, {"logit_bias": {}, "stream_options": None, "logprobs": False}),
    (COMPLETIONS, {"prompt": [VOCAB_SIZE - 1], "max_tokens": MAX_MODEL_LEN - 1}),
    (COMPLETIONS, {"prompt": ["a"] * 10, "suffix": None, "best_of": None}),
]


@pytest.mark.parametrize(("route", "fields"), ACCEPTED)
def test_accepted(http: httpx.Client, route: str, fields: dict[str, Any]) -> None:
    response = http.post(route, json=good(route) | fields)
    assert (response.status_code, response.headers.get("warning")) == (200, None), response.text
    assert "warnings" not in response.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"function_call": "required"},
            'Invalid \'function_call\': tool_choice replaced it: leave it out; "none" or "auto" would be taken, '
            'got "required"',
        ),
        ({"model": 'o"t'}, 'There is no model "o\\"t" here; "demo/model" is'),
        ({"beam_width": 2, "stop": ["a"]}, 'stop=["a"] cannot be combined with beam search'),
        ({"beam_width": 2, "logit_bias": {"1": 2}}, 'logit_bias={"1": 2.0} cannot be combined with beam search'),
        (
            {"prompt_cache_retention": "1h"},
            'Invalid \'prompt_cache_retention\': Only "in_memory" or "24h" is supported, got "1h"',
        ),
        ({"stop": [None]}, "Invalid 'stop[0]': Input should be a valid string, got null"),
        ({"stop": "x" * 2000}, f"Invalid 'stop': String should have at most 1000 characters, got \"{'x' * 40}…\""),
        ({"logit_bias": [True, "ä"]}, "Invalid 'logit_bias': Input should be a valid object, got [true, \"ä\"]"),
        ({"stop_token_ids": {}}, "Invalid 'stop_token_ids': Input should be a valid array, got {}"),
        ({"modalities": ["audio"]}, 'Invalid \'modalities[0]\': Input should be "text", got "audio"'),
        (
            {"seed": {"a": [1, [2]], **{str(number): None for number in range(9)}}},
            "Invalid 'seed': Input should be a valid integer, "
            'got {"a": [1, "…"], "0": null, "1": null, "2": null, "…": "…"}',
        ),
        ({"n": 10**100}, f"Invalid 'n': Input should be less than or equal to 128, got \"1{'0' * 39}…\""),
        (
            {"messages": [[]]},
            "Invalid 'messages[0]': Input should be a valid object, got []",
        ),
    ],
)
def test_errors_quote_json(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    assert http.post(CHAT, json=good(CHAT) | fields).json()["error"]["message"] == message
