"""The most bytes that a text may have to fit into a model's context, without tokenizing it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from engine.errors import context_exceeded

# NFC never makes a text's UTF-8 shorter than by this factor: no character has more than 3.5 times
# its bytes in the longest sequence that is equal to it (U+0390, of U+1FBE, U+0308 and U+0341).
# ASCII it leaves alone.
NFC_SHRINKS_BY = 4
MAX_CONTEXTS_CUT = 8  # a prompt of which only the last tokens are kept has at most so many contexts' tokens
# Pre-tokenizers that lose no byte.
LOSSLESS = frozenset({"ByteLevel", "Digits", "Split"})


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The limit of a context of `num_tokens`, each of at most `bytes_per_token` bytes of normalized
    text.
    """

    num_tokens: int
    bytes_per_token: int

    def check(self, text: str, param: str, *, is_cut: bool = False) -> None:
        """Raises InvalidRequest for a text that cannot fit; of one that `is_cut`, that has more
        than MAX_CONTEXTS_CUT could hold.
        """
        limit = self.num_tokens * self.bytes_per_token * (1 if text.isascii() else NFC_SHRINKS_BY)
        limit *= MAX_CONTEXTS_CUT if is_cut else 1
        if 4 * len(text) <= limit:  # a character has at most four bytes
            return
        num_bytes = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if num_bytes > limit:
            contexts = f"{MAX_CONTEXTS_CUT} contexts" if is_cut else "so many tokens"
            however = f"the prompt is too long: it has {num_bytes} bytes, and {contexts} have at most {limit}"
            raise context_exceeded(self.num_tokens, however, param=param)


def bytes_per_token(encoder: Encoder, token_bytes: Sequence[bytes]) -> int | None:
    """The longest token's bytes; None if the encoder may drop bytes of a text. A byte-level BPE
    tokenizer drops none, unless it is configured to: by another normalizer than NFC, a
    pre-tokenizer that removes what it splits at, an added token that takes the spaces beside it
    along, or a vocabulary that lacks some of the 256 bytes.
    """
    is_lossless = (
        isinstance(encoder.model, BPE)
        and all(part["type"] == "NFC" for part in parts(encoder.normalizer))
        and all(part["type"] in LOSSLESS and part.get("behavior") != "Removed" for part in parts(encoder.pre_tokenizer))
        and not any(token.lstrip or token.rstrip for token in encoder.get_added_tokens_decoder().values())
        and {bytes([byte]) for byte in range(256)} <= set(token_bytes)
    )
    return max(map(len, token_bytes)) if is_lossless else None


def parts(component: Normalizer | PreTokenizer | None) -> Iterator[dict[str, Any]]:
    """Its parts, as in tokenizer.json; empty if it is absent."""
    pending = [] if component is None else [json.loads(component.__getstate__())]
    while pending:
        part = pending.pop()
        if part["type"] == "Sequence":
            pending += part.get("normalizers") or part.get("pretokenizers") or []
        else:
            yield part
