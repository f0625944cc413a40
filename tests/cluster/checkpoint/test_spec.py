from pathlib import Path

import pytest

from cluster.checkpoint.spec import read_spec
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
