"""Where keys come from, what is refused, and that no message shows one."""

from pathlib import Path

import pytest

from cluster.api.edge.keys import API_KEY_VARIABLE, collect_api_keys, read_api_keys
from cluster.launch.app import build_app
from engine.errors import InvalidConfig

SECRET = "sk-do-not-tell"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text("# of the first team\nsk-one\n\n  sk-zwö  \n")
    return str(path)


def test_none() -> None:
    assert read_api_keys() == ()


def test_of_the_options_and_of_the_file(file: str) -> None:
    assert read_api_keys(["a", "b"]) == ("a", "b")
    assert read_api_keys(file=file) == ("sk-one", "sk-zwö")
    assert read_api_keys(["a"], file) == ("a", "sk-one", "sk-zwö")


def test_of_the_environment_where_no_other_is_given(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-two")
    assert read_api_keys() == ("sk-two",)
    assert read_api_keys(["a"]) == ("a",)
    assert read_api_keys(file=file) == ("sk-one", "sk-zwö")
    assert collect_api_keys([]) == ()


def test_an_empty_variable_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "")
    with pytest.raises(InvalidConfig, match="SQUADRON_API_KEY holds an empty API key: anybody could ask"):
        read_api_keys()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"# nothing but a comment\n", "holds no key"),
        (f"{SECRET} x".encode(), "holds an API key with a space or a control character"),
        (f"{SECRET}\0".encode(), "holds an API key with a space or a control character"),
        (SECRET.encode() + b"\xff", "is not UTF-8"),
    ],
)
def test_files_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig, match=sentence) as refused:
        read_api_keys(file=str(path))
    assert SECRET not in str(refused.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"api_key_file .*/keys cannot be read: No such file"):
        read_api_keys(file=str(tmp_path / "keys"))


@pytest.mark.parametrize("keys", [[f"{SECRET} x"], [["a", SECRET]], {"a": SECRET}, SECRET])
def test_a_mistake_in_a_configuration_does_not_tell_the_key(keys: object) -> None:
    with pytest.raises(InvalidConfig) as refused:
        build_app({"engine": {"model": "configs/demo"}, "api_keys": keys})
    assert "api_key" in str(refused.value) or "API key" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_the_application_takes_keys_from_a_file(file: str) -> None:
    application = build_app({"engine": {"model": "configs/demo"}, "api_keys": ["a"], "api_key_file": file})
    assert ("a", "sk-one", "sk-zwö") in application._bound_deployment.init_args
