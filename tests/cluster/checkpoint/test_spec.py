import json
from pathlib import Path

import pytest

from cluster.checkpoint.spec import check_architecture, read_spec
from engine.checkpoint.model_config import ModelConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO


def test_the_demo_is_described() -> None:
    spec = read_spec(ModelConfig.load(DEMO), DEMO)
    assert spec.vocab_size == ModelConfig.load(DEMO).vocab_size
    assert len(spec.stages(2)) == 2


def test_an_unsupported_model_is_refused_by_folder_and_field(tmp_path: Path) -> None:
    model = ModelConfig.load(DEMO)
    model = model.model_copy(update={"hf_config": model.hf_config | {"hidden_act": "gelu"}})
    with pytest.raises(InvalidConfig, match=rf"^{tmp_path}: config.json: hidden_act='gelu' is not supported"):
        read_spec(model, str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"hidden_size": 64}},
            "names the architecture Qwen3_5ForConditionalGeneration: its gated delta net layers, which",
        ),
        (
            {"architectures": ["Qwen2_5_VLForConditionalGeneration"]},
            "VLForConditionalGeneration; there is Qwen2",
        ),
        (
            {"architectures": ["ChatGLMModel"], "num_layers": 28, "auto_map": {"AutoModel": "modeling_chatglm.Model"}},
            r"ChatGLMModel, of code that it brings \(auto_map\), which is never run; there is Qwen2ForCausalLM",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "auto_map": {"AutoModel": "modeling_own.Model"}},
            r"auto_map={'AutoModel': 'modeling_own.Model'} names code .* never run; a copy without this",
        ),
        ({"architectures": None}, "names the architecture none; there is"),
    ],
)
def test_another_architecture_is_named_before_its_fields_are_missed(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidConfig, match=rf"^{tmp_path}: config.json:? .*{said}"):
        check_architecture(str(tmp_path))
