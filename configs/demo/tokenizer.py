"""The demo checkpoint's tokenizer: Qwen's byte-level BPE with 768 entries, learned from the
training conversations.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from data import training_conversations
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AddedToken, Qwen2Tokenizer

VOCAB_SIZE = 768
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORD = re.compile(r" [A-Z]*[a-z]+| [A-Z]+|[A-Z][a-z]+")
SPACE = "\u0120"  # how byte-level BPE spells a space

# A tool is shown by its name and its parameters' names: its schema would be more than a hundred
# tokens, most of them single letters.
CHAT_TEMPLATE = """\
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0]['role'] == 'system' -%}{{- messages[0]['content'] + '\\n\\n' -}}{%- endif -%}
{{- 'Tools:\\n' -}}
{%- for tool in tools -%}
{%- set properties = (tool['function']['parameters'] or {})['properties'] or {} -%}
{{- tool['function']['name'] + '(' + (properties | join(', ')) + ')\\n' -}}
{%- endfor -%}
{{- 'To call one, answer\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' -}}
{%- endif -%}
{%- set rest = messages[1:] if tools and messages[0]['role'] == 'system' else messages -%}
{%- for message in rest -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] -}}
{%- for call in message['tool_calls'] or [] -%}
{{- '\\n' if message['content'] or not loop.first -}}
{{- '<tool_call>\\n{"name": ' + (call['function']['name'] | tojson) + ', "arguments": ' -}}
{{- (call['function']['arguments'] | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def train_tokenizer(seed: int, num_conversations: int = 5000) -> Qwen2Tokenizer:
    """Take the most frequent beginnings of words as tokens.

    A token is a single byte, or begins with a space or a capital letter, or is the name of a role.
    So a quoted word is a row of single letters, which makes spelling and reversing learnable, and
    what is not ASCII takes two to four tokens a character.
    """
    conversations = islice(training_conversations(seed), num_conversations)
    alphabet = sorted(ByteLevel.alphabet())
    prefixes = frequent_prefixes(
        (message["content"] for conversation in conversations for message in conversation.messages),
        VOCAB_SIZE - len(alphabet) - len(ROLES) - len(SPECIAL_TOKENS),
    )
    entries = [*alphabet, *prefixes, *ROLES, *SPECIAL_TOKENS]
    tokenizer = Qwen2Tokenizer(
        vocab={entry: index for index, entry in enumerate(entries)},
        merges=[(prefix[:-1], prefix[-1]) for prefix in prefixes],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
    )
    tokenizer.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def frequent_prefixes(texts: Iterable[str], count: int) -> list[str]:
    """The most frequent word beginnings of two letters or more; what a beginning itself begins with
    comes before it.
    """
    frequency: Counter[str] = Counter()
    for text in texts:
        for word in WORD.findall(text):
            spelled = word.replace(" ", SPACE)
            frequency.update(spelled[:length] for length in range(2, len(spelled) + 1))
    return sorted(frequency, key=lambda prefix: (-frequency[prefix], len(prefix), prefix))[:count]
