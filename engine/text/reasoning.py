"""The marks around reasoning, as Qwen3 writes it: single tokens, where a model knows them."""

from collections.abc import Sequence

BEGIN, END = "<think>", "</think>"
_TAIL = 3  # tokens of a prompt that a template may put there: BEGIN and a line end


def ends_inside(prompt_token_ids: Sequence[int], begin: int, end: int) -> bool:
    """Whether the prompt ends in the beginning of the reasoning, as that of models that always
    reason.
    """
    marks = [token_id for token_id in prompt_token_ids[-_TAIL:] if token_id in (begin, end)]
    return marks[-1:] == [begin]
