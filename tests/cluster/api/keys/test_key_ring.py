"""Where keys come from, what is refused, that no message shows one, and that a file may change."""

import hashlib
import logging
import os
import pickle
import threading
from pathlib import Path

import pytest

from cluster.api.keys.key_ring import API_KEY_VARIABLE, KeyRing, given_keys
from cluster.gateway.options import GatewayOptions
from cluster.launch.app import build_app
from engine.errors import InvalidConfig

SECONDS = 120  # more than anything here takes
SECRET = "sk-do-not-tell"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text("# of the first team\nsk-one\n\n  sk-zwö  \n")
    return str(path)


def replace_file(file: str, text: str) -> None:
    """As a careful operator does."""
    other = Path(f"{file}.new")
    other.write_text(text)
    os.replace(other, file)


def knows(ring: KeyRing, key: str) -> bool:
    return ring.find(key.encode()) is not None


def test_none() -> None:
    assert given_keys([], None) == ()
    assert not KeyRing() and not knows(KeyRing(), "")


def test_of_the_options_and_of_the_file(file: str) -> None:
    ring = KeyRing(["a", "b"], file)
    assert ring.names == ["key-1", "key-2", "file-1", "file-2"]
    assert all(knows(ring, key) for key in ("a", "b", "sk-one", "sk-zwö"))
    assert not any(knows(ring, key) for key in ("", "c", "sk-on", "SK-ONE", "sk-onee"))
    assert ring.find(b"\xff\xfe") is None


def test_of_the_environment_where_no_other_is_given(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-two")
    assert given_keys([], None) == ("sk-two",)
    assert given_keys(["a"], None) == ("a",)
    assert given_keys([], file) == ()


def test_an_empty_variable_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "")
    with pytest.raises(InvalidConfig, match="SQUADRON_API_KEY holds an empty API key: anybody could ask"):
        given_keys([], None)


@pytest.mark.parametrize("keys", [[""], ["a", ""], [f"{SECRET} x"]])
def test_keys_refused(keys: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="the configuration holds an") as refused:
        KeyRing(keys)
    assert SECRET not in str(refused.value)


def test_one_key_twice(file: str) -> None:
    assert KeyRing(["a", "a"]).names == ["key-1"]
    with pytest.raises(InvalidConfig, match="'key-1' and 'file-1' are the same key"):
        KeyRing(["sk-one"], file)


@pytest.mark.parametrize("keys", [[f"{SECRET} x"], [["a", SECRET]], {"a": SECRET}, SECRET])
def test_a_mistake_in_a_configuration_does_not_tell_the_key(keys: object) -> None:
    with pytest.raises(InvalidConfig) as refused:
        build_app({"engine": {"model": "configs/demo"}, "api_keys": keys})
    assert "api_key" in str(refused.value) or "API key" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_application_takes_keys_from_a_file(file: str) -> None:
    application = build_app({"engine": {"model": "configs/demo"}, "api_keys": ["a"], "api_key_file": file})
    (options,) = (each for each in application._bound_deployment.init_args if isinstance(each, GatewayOptions))
    assert options.http.api_keys.names == ["key-1", "file-1", "file-2"]


def test_a_changed_file_is_read_again(file: str) -> None:
    ring = KeyRing(["a"], file)
    replace_file(file, "sk-three\n")
    assert knows(ring, "sk-one"), "before a look"
    ring.look()
    assert [knows(ring, key) for key in ("a", "sk-one", "sk-three")] == [True, False, True]


@pytest.mark.parametrize("text", ["# none\n", f"{SECRET} x\n", f"{SECRET}\0\n", "a\n"])
def test_a_broken_file_is_reported_and_the_keys_stay(file: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing(["a"], file)
    replace_file(file, text)
    with caplog.at_level(logging.ERROR, "ray.serve"):
        ring.look()
        ring.look()
    assert knows(ring, "sk-one") and knows(ring, "a")
    (record,) = caplog.records
    assert "The API keys stay as they were: api_key_file" in record.getMessage() and SECRET not in record.getMessage()


def test_a_date_that_does_not_exist_does_not_end_the_looking(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: a, key: {SECRET}}}]")
    ring = KeyRing(file=str(file))
    replace_file(str(file), f"keys: [{{name: 2026-02-30, key: {SECRET}}}]")
    ring.look()
    assert knows(ring, SECRET)
    replace_file(str(file), "keys: [{name: a, key: sk-new}]")
    ring.look()
    assert knows(ring, "sk-new") and not knows(ring, SECRET)


def test_a_file_that_is_removed_changes_nothing(file: str, caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing(file=file)
    os.remove(file)
    ring.look()
    assert knows(ring, "sk-one") and "No such file" in caplog.text


def test_a_gateway_on_another_node_has_the_keys_without_the_file(file: str) -> None:
    sent = pickle.dumps(KeyRing(["a"], file))
    assert b"sk-one" not in sent and hashlib.sha256(b"sk-one").digest() in sent
    os.remove(file)
    there = pickle.loads(sent)
    there.look()
    assert there.names == ["key-1", "file-1", "file-2"] and knows(there, "sk-one")


def test_a_look_that_fails_unforeseen_is_not_the_last(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.api.keys.key_ring.LOOK_SECONDS", 0.01)
    looks = threading.Semaphore(0)

    def look(_: KeyRing) -> None:
        looks.release()
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(KeyRing, "look", look)
    KeyRing((), file).watch()
    for _ in range(2):
        assert looks.acquire(timeout=SECONDS)
