"""A choice of tools that forces the answer to be a call."""

from cluster.api.answers.coder_limits import unenforced
from cluster.api.answers.forced_calls import call_grammar
from cluster.api.models.model import Model
from cluster.api.requests.chat.tools import AllowedTools, NamedTool, chosen, must_call, refuse_parameters
from cluster.api.requests.form import wanted_form
from cluster.api.requests.protocol import ChatRequest, HandleRequest
from engine.errors import InvalidRequest
from engine.structured_outputs import StructuredOutputs, structured


def forced_calls(request: ChatRequest | HandleRequest, model: Model) -> dict[str, StructuredOutputs]:
    """The form of an answer that has to be a call, as a sampling parameter; nothing if it has not.
    Raises InvalidRequest.
    """
    choice = request.tool_choice
    if not must_call(choice):
        return {}
    if model.tool_format is None:
        return {}  # refused with the tools
    other = wanted_form(request)
    if other is not None and not other.param.startswith("response_format"):  # which is that of a text
        raise InvalidRequest(f"{other.param} and tool_choice are two forms of one answer", param=other.param)
    tools = request.tools or []
    if isinstance(choice, NamedTool | AllowedTools):
        tools = chosen(tools, choice)
    if not tools:
        raise InvalidRequest("There are no tools that could be called", param="tool_choice")
    if model.tool_format == "qwen3_coder":
        refuse_parameters(request.tools or (), tools, unenforced)
    is_parallel = request.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    shown = [tool.model_dump(exclude_none=True) for tool in tools]
    grammar = call_grammar(model.tool_format, shown, is_parallel=is_parallel)
    return {"structured_outputs": structured("grammar", grammar, "tools")}
