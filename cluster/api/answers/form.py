"""What a chat's answer is split into, and what answers with numbers need to know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cluster.api.answers.chat_parser import ChatParser
from cluster.api.answers.hermes import HermesParser
from cluster.api.answers.parts import TextParser
from cluster.api.answers.qwen3_coder import Qwen3CoderParser
from cluster.api.answers.reasoning import ReasoningParser
from engine.text.reasoning import ends_inside

ToolFormat = Literal["hermes", "qwen3_coder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """By default nothing is split: the text is the content."""

    tool_format: ToolFormat | None = None  # in which calls are looked for
    tools: Sequence[Mapping[str, Any]] = ()  # of the request
    is_parallel: bool = True  # otherwise only the first call is passed on
    reasoning_ids: tuple[int, int] | None = None  # the tokens around reasoning, which is separated
    shows_reasoning: bool = True  # otherwise it is left out

    @property
    def is_plain(self) -> bool:
        return self.tool_format is None and self.reasoning_ids is None

    def parser(self, prompt_ids: Sequence[int]) -> ChatParser:
        """For one choice; the end of the prompt's ids tells whether it begins with reasoning."""
        reasoning = None
        if self.reasoning_ids is not None:
            reasoning = ReasoningParser(is_inside=ends_inside(prompt_ids, *self.reasoning_ids))
        return ChatParser(reasoning, self._calls())

    def _calls(self) -> TextParser | None:
        match self.tool_format:
            case "hermes":
                return HermesParser()
            case "qwen3_coder":
                return Qwen3CoderParser(self.tools)
            case None:
                return None


PLAIN = Form()


@dataclass(frozen=True, slots=True)
class WantedEmbeddings:
    is_base64: bool  # of float32, else lists of numbers
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class WantedRanking:
    documents: tuple[str, ...] | None  # to be returned
    top_n: int | None


@dataclass(frozen=True, slots=True)
class WantedScores:
    """Nothing more."""


Wanted = WantedEmbeddings | WantedRanking | WantedScores
