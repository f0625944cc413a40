"""Tokens of tokenizer_config.json and of older files, as in transformers."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from transformers import AutoTokenizer

from engine.errors import InvalidConfig
from engine.request import ChatPrompt
from engine.text.tokenizer import Tokenizer
from tests.engine.support.workloads import DEMO


def with_settings(folder: Path, **changes: object) -> str:
    (folder / "tokenizer.json").write_bytes((Path(DEMO) / "tokenizer.json").read_bytes())
    write_settings(folder, **changes)
    return str(folder)


def write_settings(folder: Path, **changes: object) -> None:
    settings = json.loads((Path(DEMO) / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | changes))


def test_tokens_that_only_the_settings_list(tmp_path: Path) -> None:
    size = Encoder.from_file(f"{DEMO}/tokenizer.json").get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {str(size): {"content": "<|mark|>", "special": True, **flags}}
    folder = with_settings(tmp_path, added_tokens_decoder=added)
    ours, text = Tokenizer(folder), "Hello<|mark|>, world"
    assert ours.encode(text) == AutoTokenizer.from_pretrained(folder).encode(text)
    assert size in ours.encode(text) and size in ours.special_ids


OBJECT = {"content": "<|mark|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
BY_ID = {
    str(token_id): OBJECT | {"content": token.content, "special": token.special}
    for token_id, token in Encoder.from_file(f"{DEMO}/tokenizer.json").get_added_tokens_decoder().items()
} | {"768": OBJECT | {"special": True}}
USER, BEGIN = (
    next(key for key, token in BY_ID.items() if token["content"] == text) for text in ("user", "<|im_start|>")
)
IN_THE_VOCABULARY = Encoder.from_file(f"{DEMO}/tokenizer.json").token_to_id("He")
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"


@pytest.mark.parametrize(
    ("changes", "files"),
    [
        ({"bos_token": "<|mark|>", "image_token": "<|image|>"}, {}),
        ({"extra_special_tokens": {"image_token": "<|image|>", "video_token": "<|im_start|>"}}, {}),
        ({"extra_special_tokens": ["<|mark|>", "<|im_end|>"]}, {}),
        ({"extra_special_tokens": {"image_token": "<|image|>"}, "additional_special_tokens": ["<|mark|>"]}, {}),
        ({"additional_special_tokens": ["<|im_start|>", OBJECT | {"__type": "AddedToken"}]}, {}),
        ({}, {ADDED: {"<|mark|>": 768, "<|image|>": 769}}),
        ({}, {MAP: {"bos_token": OBJECT, "additional_special_tokens": ["<|image|>"]}, ADDED: {"<|mark|>": 768}}),
        ({"added_tokens_decoder": BY_ID}, {MAP: {"bos_token": "<|image|>"}}),
        ({"additional_special_tokens": [OBJECT | {"__type": "AddedToken", "lstrip": True, "normalized": True}]}, {}),
        ({"pad_token": "!"}, {}),
        ({"image_token": "He"}, {}),
        ({"added_tokens_decoder": BY_ID | {str(IN_THE_VOCABULARY): OBJECT | {"content": "He", "special": False}}}, {}),
        ({}, {ADDED: {"He": IN_THE_VOCABULARY}}),
        ({"image_token": OBJECT | {"lstrip": True, "__type": "AddedToken"}, "bos_token": "<|mark|>"}, {}),
        ({"pad_token": "user"}, {}),
        ({"extra_special_tokens": ["user"]}, {}),
        ({"added_tokens_decoder": BY_ID | {USER: BY_ID[USER] | {"special": True, "lstrip": True}}}, {}),
        ({"added_tokens_decoder": BY_ID | {BEGIN: BY_ID[BEGIN] | {"special": False}}}, {}),
        ({}, {ADDED: {"user": int(USER), "<|im_start|>": int(BEGIN)}}),
    ],
)
def test_special_tokens_are_those_of_transformers(
    tmp_path: Path, changes: dict[str, object], files: dict[str, dict[str, object]]
) -> None:
    """Named and not, of tokenizer_config.json and of the older files beside it."""
    template = "{{ bos_token }}|{{ image_token }}|{{ video_token }}|{{ messages[0].content }}"
    folder = with_settings(tmp_path, chat_template=template, **changes)
    for name, contents in files.items():
        (tmp_path / name).write_text(json.dumps(contents))
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "Hello <|mark|>, <|image|><|im_start|>!! ! user"
    messages = [{"role": "user", "content": text}]
    assert ours.render_chat(ChatPrompt(messages)) == theirs.apply_chat_template(messages, tokenize=False)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "normalized", "single_word", "special"])
@pytest.mark.parametrize("content", ["<|im_start|>", "<|im_end|>", "user"])
def test_flags_of_settings_come_before_the_tokenizers(tmp_path: Path, content: str, flag: str, is_set: bool) -> None:
    """Of tokens with ids, and of special ones: one of these has a name."""
    (token_id,) = (token_id for token_id, entry in BY_ID.items() if entry["content"] == content)
    with_settings(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    next(each for each in tokenizer["added_tokens"] if each["content"] == content)[flag] = not is_set
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    entry = BY_ID[token_id] | {flag: is_set}
    settings: list[dict[str, object]] = [
        {"added_tokens_decoder": BY_ID | {token_id: entry}},
        {"added_tokens_decoder": BY_ID | {token_id: {name: entry[name] for name in entry if name != flag}}},
        {"bos_token": entry | {"__type": "AddedToken"}},
        {},
    ]
    for changes in settings:
        write_settings(tmp_path, **changes)
        ours, theirs = Tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
        text = f"Hello  {content}  world a{content}b"
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"added_tokens_decoder": {"5": {"content": "<|mark|>"}}},
            r"'<\|mark\|>' has id 5, and by tokenizer.json it has",
        ),
        (
            {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None], "AutoProcessor": "own.Own"}},
            "code that the checkpoint brings, which",
        ),
        ({"auto_map": ["tokenization_own.Own", None]}, "code that the checkpoint brings, which"),
        ({"added_tokens_decoder": {"five": {}}}, "added_tokens_decoder is no object of tokens and ids"),
        ({"added_tokens_decoder": ["<|mark|>"]}, "added_tokens_decoder is no object of tokens and ids"),
        ({"add_prefix_space": True}, "add_prefix_space=true contradicts tokenizer.json, whose pre_tokenizer adds none"),
        ({"split_special_tokens": True}, "split_special_tokens=true is not supported; false is"),
    ],
)
def test_settings_that_contradict_the_tokenizer(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Tokenizer(with_settings(tmp_path, **changes))


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (
            {"<|mark|>": 5},
            r"added_tokens\.json says that token '<\|mark\|>' has id 5, and by tokenizer.json it has 768",
        ),
        ({"<|mark|>": 768, "<|image|>": 768}, r"added_tokens\.json says that tokens .* have one id, 768"),
        ({"<|mark|>": "five"}, r"added_tokens\.json is no object of tokens and ids"),
    ],
)
def test_an_older_file_that_contradicts_the_tokenizer(tmp_path: Path, added: dict[str, object], said: str) -> None:
    folder = with_settings(tmp_path)
    (tmp_path / ADDED).write_text(json.dumps(added))
    with pytest.raises(InvalidConfig, match=said):
        Tokenizer(folder)


def test_settings_that_repeat_the_tokenizer_or_are_not_for_it(tmp_path: Path) -> None:
    folder = with_settings(tmp_path, add_prefix_space=True, auto_map={"AutoProcessor": "processing_own.Own"})
    have_spaces_added(tmp_path)
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode("Hello, world") == theirs.encode("Hello, world")
    assert ours.decode(ours.encode("Hello, world")) == theirs.decode(theirs.encode("Hello, world"))


def test_spaces_that_only_the_tokenizer_adds(tmp_path: Path) -> None:
    """Where the settings say nothing, they count; versions of transformers differ."""
    folder = with_settings(tmp_path, add_prefix_space=False)
    have_spaces_added(tmp_path)
    with pytest.raises(InvalidConfig, match="add_prefix_space=false contradicts tokenizer"):
        Tokenizer(folder)
    ours = Tokenizer(with_settings(tmp_path))
    have_spaces_added(tmp_path)
    assert Tokenizer(str(tmp_path)).encode("Hello") != ours.encode("Hello")


def have_spaces_added(folder: Path) -> None:
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    told["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")


def test_a_request_may_set_the_name_of_a_special_token(tmp_path: Path) -> None:
    template = "{{ bos_token }}|{{ image_token }}|{{ video_token }}"
    folder = with_settings(
        tmp_path, chat_template=template, bos_token="<|mark|>", extra_special_tokens={"image_token": "<|image|>"}
    )
    messages, variables = [{"role": "user", "content": "Hello"}], {"bos_token": "a", "image_token": "b"}
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(messages, tokenize=False, **variables)
    assert Tokenizer(folder).render_chat(ChatPrompt(messages, variables=variables)) == expected == "a|b|"


def test_a_tokenizer_that_git_has_not_fetched(tmp_path: Path) -> None:
    """Qwen3's is so large that the hub keeps it in Git LFS."""
    write_settings(tmp_path)
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    with pytest.raises(InvalidConfig, match=r"tokenizer\.json cannot be read: it is a Git LFS pointer; `git lfs pull`"):
        Tokenizer(str(tmp_path))
