"""The relevance of a document to a query, from a model that answers "yes" or "no": Qwen3-Reranker's
way.

Prompt, instruction and score are those of its model card.
"""

import math

from engine.pooling import Pooling, values
from engine.text.tokenizer import Tokenizer

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
NO_ANSWERS = 'the model cannot judge documents: "yes" and "no" are not single tokens of its tokenizer'


def judging_prompt(query: str, document: str, instruction: str | None = None) -> str:
    """After it the model says "yes" or "no"."""
    asked = f"<Instruct>: {INSTRUCTION if instruction is None else instruction}"
    return f"{_BEGIN}{asked}\n<Query>: {query}\n<Document>: {document}{_END}"


def judging(tokenizer: Tokenizer) -> Pooling | None:
    """What to ask for at the end of such a prompt; None if the tokenizer has "yes" or "no" not as
    single tokens.
    """
    answers = [tokenizer.encode_word(word) for word in ("yes", "no")]
    if any(len(token_ids) != 1 for token_ids in answers):
        return None
    return Pooling("logprobs", tuple(token_id for (token_id,) in answers))


def score(pooled: bytes) -> float:
    """The probability of "yes" where there is nothing but "yes" and "no", from 0 to 1."""
    yes, no = values(pooled).tolist()
    odds = math.exp(-abs(yes - no))
    return (1.0 if yes >= no else odds) / (1 + odds)
