"""Files of keys: what they may hold, and errors that name entry and limit, never the key."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from cluster.api.keys.key import Key
from cluster.api.keys.key_file import read_key_file
from engine.errors import InvalidConfig

SECRET = "sk-do-not-tell"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
WHOLE = {
    "name": "batch",
    "key": SECRET,
    "requests_per_minute": 60,
    "tokens_per_minute": 100_000,
    "max_concurrency": 4,
    "priority": 5,
    "weight": 0.5,
    "cache_namespace": "team",
}


def write(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_one_a_line(tmp_path: Path) -> None:
    keys = read_key_file(write(tmp_path, "keys", "# of the first team\nsk-one\n\n  sk-zwö  \nsk-one\n"))
    assert keys == (
        Key("file-1", hashlib.sha256(b"sk-one").digest()),
        Key("file-2", hashlib.sha256("sk-zwö".encode()).digest()),
    )


@pytest.mark.parametrize("name", ["keys.yaml", "keys.yml", "keys.json"])
def test_with_limits(tmp_path: Path, name: str) -> None:
    content = {"keys": [WHOLE, {"name": "chat", "sha256": "ab" * 32}]}
    dump = json.dumps if name.endswith("json") else yaml.safe_dump
    batch, chat = read_key_file(write(tmp_path, name, dump(content)))
    limits = {field: value for field, value in WHOLE.items() if field not in ("name", "key")}
    assert batch == Key("batch", bytes.fromhex(DIGEST), **limits)  # type: ignore[arg-type]
    assert chat == Key("chat", bytes.fromhex("ab" * 32)) and not chat.has_limits and batch.has_limits


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"requests_per_minute": 0}, r"keys\[0\] \(batch\): requests_per_minute=0: .*greater than or equal to 1"),
        ({"tokens_per_minute": -1}, r"tokens_per_minute=-1: .*greater than or equal to 1"),
        ({"max_concurrency": 1.5}, r"max_concurrency=1.5: .*valid integer"),
        ({"priority": -1}, r"priority=-1: .*greater than or equal to 0"),
        ({"weight": 0}, r"weight=0: .*greater than or equal to 0.001"),
        ({"weight": float("inf")}, r"weight=inf: .*less than or equal to 1000"),
        ({"weight": float("nan")}, "weight=nan"),
        ({"cache_namespace": ""}, r"cache_namespace=''"),
        ({"name": "a b"}, r"keys\[0\] \(a b\): name='a b'"),
        ({"name": None}, r"keys\[0\]: name=None"),
        ({"request_per_minute": 5}, r"unknown key 'request_per_minute'; did you mean 'requests_per_minute'\?"),
        ({"sha256": DIGEST}, "has either key or sha256"),
        ({"key": None}, "has either key or sha256"),
        ({"key": None, "sha256": SECRET}, "sha256: "),
        ({"key": ""}, "an empty API key"),
        ({"key": f"{SECRET} x"}, "an API key with a space or a control character"),
        ({"key": [SECRET]}, "key: Input should be a valid string"),
    ],
)
def test_entries_refused(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    path = write(tmp_path, "keys.yaml", yaml.safe_dump({"keys": [WHOLE | change]}))
    with pytest.raises(InvalidConfig, match=sentence) as refused:
        read_key_file(path)
    assert f"api_key_file {path}" in str(refused.value)
    assert SECRET not in str(refused.value) and DIGEST not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("keys", b"# nothing but a comment\n", "holds no key"),
        ("keys", f"{SECRET} x".encode(), "holds an API key with a space or a control character"),
        ("keys", f"{SECRET}\0".encode(), "holds an API key with a space or a control character"),
        ("keys", SECRET.encode() + b"\xff", "is not UTF-8"),
        ("keys.yaml", b"", "must be one list called 'keys'"),
        ("keys.yaml", b"keys: []", "holds no key"),
        ("keys.yaml", f"- {SECRET}".encode(), "must be one list called 'keys'"),
        ("keys.yaml", f"keys: [{SECRET}]".encode(), r"keys\[0\] must be a mapping with a name and a key"),
        ("keys.yaml", f"keys: [\n{SECRET}: [".encode(), "is not YAML: line 2"),
        ("keys.yaml", f"keys: !!python/object/apply:os.system [{SECRET}]".encode(), "is not YAML: line 1"),
        ("keys.yaml", f"keys: [{{name: 2026-02-30, key: {SECRET}}}]".encode(), "is not YAML: line 1"),
        ("keys.yaml", f"keys: [{{name: a, key: !!int {SECRET}}}]".encode(), "is not YAML: line 1"),
        ("keys.json", b'{"keys": [{"weight": %s}]}' % (b"9" * 5000), "a number that cannot be"),
        ("keys.yaml", f"keys:\n- name: a\n  key: {SECRET}\n  key: x\n".encode(), "line 4: a field is there twice"),
        ("keys.yaml", f"keys: [{{{SECRET}: 1, {SECRET}: 2}}]".encode(), "line 1: a field is there twice"),
        (
            "keys.json",
            f'{{"keys": [{{"name": "a", "key": "{SECRET}", "key": "x"}}]}}'.encode(),
            "keys.json: a field is",
        ),
        ("keys.json", f'{{"keys": ["{SECRET}"'.encode(), "is not JSON: line 1"),
        ("keys.json", b"[" * 200_000, "is nested too deeply"),
        (
            "keys.yaml",
            f"keys: [{{name: a, key: {SECRET}}}, {{name: a, key: x}}]".encode(),
            "two keys are called 'a'",
        ),
        (
            "keys.yaml",
            f"keys: [{{name: a, key: {SECRET}}}, {{name: b, sha256: '{DIGEST}'}}]".encode(),
            "'a' and 'b' are the same key",
        ),
    ],
)
def test_files_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence) as refused:
        read_key_file(write(tmp_path, name, content))
    assert SECRET not in str(refused.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"api_key_file .*/keys cannot be read: No such file"):
        read_key_file(tmp_path / "keys")
