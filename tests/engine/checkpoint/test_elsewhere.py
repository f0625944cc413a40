"""Places that models are named in and not fetched from."""

import pytest

from engine.checkpoint.elsewhere import check_place
from engine.errors import InvalidConfig


@pytest.mark.parametrize(
    "model",
    [
        "modelscope://Qwen/Qwen3-8B",
        "ms://Qwen/Qwen3-8B",
        "https://www.modelscope.cn/models/Qwen/Qwen3-8B",
        "https://modelscope.cn/models/Qwen/Qwen3-8B/summary?x=1",
    ],
)
def test_modelscope_is_said_to_need_its_own_tool(model: str) -> None:
    with pytest.raises(InvalidConfig, match=r"`modelscope download --model Qwen/Qwen3-8B --local_dir FOLDER`"):
        check_place(model, model)


def test_a_page_of_the_hub_is_told_its_name() -> None:
    for page in ("https://huggingface.co/Qwen/Qwen3-8B", "https://hf.co/Qwen/Qwen3-8B/tree/main"):
        with pytest.raises(InvalidConfig, match=r"name the model, hf://Qwen/Qwen3-8B$"):
            check_place(page, page)


@pytest.mark.parametrize("model", ["gs://", "s3:///demo", "s3://"])
def test_a_missing_bucket_is_told(model: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^model={model}: the bucket is missing; {model[:2]}://BUCKET/FOLDER"):
        check_place(model, model.rstrip("/"))


def test_a_revision_in_a_name_is_told_its_option() -> None:
    with pytest.raises(InvalidConfig, match=r"^model=hf://org/demo@v1: .* --revision v1, beside hf://org/demo$"):
        check_place("hf://org/demo@v1", "hf://org/demo@v1")


@pytest.mark.parametrize("variable", ["VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"])
def test_a_variable_that_means_modelscope_is_not_ignored(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "True")
    with pytest.raises(InvalidConfig, match=rf"{variable} is set, .*; hf://a/b is of the Hugging Face hub"):
        check_place("a/b", "hf://a/b")
    check_place("hf://a/b", "hf://a/b")
    check_place("s3://a/b", "s3://a/b")
    monkeypatch.setenv(variable, "False")
    check_place("a/b", "hf://a/b")
