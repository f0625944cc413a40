"""A response that has just begun, with the fields that it repeats of its request."""

from typing import Any

from cluster.api.dialects.responses_api.answer import ResponseAnswer
from cluster.api.dialects.responses_api.fields import AllowedChoice, FunctionChoice, FunctionTool, ResponsesRequest
from cluster.api.requests.call import Call


def begun(asked: ResponsesRequest, call: Call, *, is_stored: bool) -> ResponseAnswer:
    choice = asked.tool_choice
    return ResponseAnswer(
        call.id,
        call.created,
        call.model,
        "in_progress",
        [],
        instructions=asked.instructions,
        metadata=asked.metadata or {},
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=call.params.temperature,
        top_p=call.params.top_p,
        tool_choice="auto" if choice is None else _choice(choice),
        tools=[_tool(tool) for tool in asked.tools or ()],
        text=_text(asked),
        reasoning={"effort": asked.reasoning and asked.reasoning.effort, "summary": None},
        max_output_tokens=asked.max_output_tokens,
        previous_response_id=asked.previous_response_id,
        store=is_stored,
        prompt_cache_key=asked.prompt_cache_key,
        safety_identifier=asked.safety_identifier,
        user=asked.user,
        max_tool_calls=asked.max_tool_calls,
        top_logprobs=asked.top_logprobs or 0,
    )


def _choice(choice: str | FunctionChoice | AllowedChoice) -> str | dict[str, Any]:
    match choice:
        case FunctionChoice(name=name):
            return {"type": "function", "name": name}
        case AllowedChoice(mode=mode, tools=tools):
            return {"type": "allowed_tools", "mode": mode, "tools": [_choice(tool) for tool in tools]}
        case _:
            return choice


def _tool(tool: FunctionTool) -> dict[str, Any]:
    """The schema of its arguments is kept to where a call is forced, and nowhere else."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _text(asked: ResponsesRequest) -> dict[str, Any]:
    wanted = asked.text.format if asked.text is not None else None
    if wanted is None or wanted.type != "json_schema":
        shown: dict[str, Any] = {"type": wanted.type if wanted is not None else "text"}
    else:
        shown = {"type": "json_schema", "name": wanted.name, "schema": wanted.schema_}
        shown |= {"description": wanted.description, "strict": wanted.strict}
    return {"format": shown, "verbosity": "medium"}
