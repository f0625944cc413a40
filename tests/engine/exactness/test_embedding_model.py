"""A model in the form of Qwen3-Embedding's: saved without its head, with the files of
sentence-transformers.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel

from cluster.checkpoint.manifest import check_weights
from cluster.checkpoint.spec import read_spec
from engine.checkpoint.embedding import embedding_of
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.pooling import Embedding, values
from tests.engine.exactness.test_demo_exactness import SHARDED
from tests.engine.exactness.test_pooling import pooled
from tests.engine.support.demo import demo_engine
from tests.engine.support.workloads import DEMO
from tests.parallel.spec.saved import SIZES

PROMPTS = [[5, 17, 260, 4, 9, 9, 31], [200], list(range(3, 90))]


@pytest.fixture(scope="module", params=["one file", "several, and no head anywhere"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedding-model")
    is_tied = request.param == "one file"
    torch.manual_seed(2)
    model = transformers.Qwen3Model(transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=is_tied))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path, max_shard_size="1GB" if is_tied else "200KB")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["Qwen3ForCausalLM"]
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    modules = [{"path": name, "type": f"st.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (path / "Pooling").mkdir()
    (path / "Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}', encoding="utf-8")
    shutil.copy(f"{DEMO}/tokenizer.json", path)
    return path


def test_it_embeds_as_transformers_does(folder: Path) -> None:
    theirs = AutoModel.from_pretrained(folder, dtype=torch.float32)
    check_weights(str(folder), read_spec(ModelConfig.load(str(folder)), str(folder)))
    made = embedding_of(EngineConfig.create(model=str(folder)))
    assert made == Embedding("last", is_normalized=True, is_all=True)
    with demo_engine(model=str(folder), ops_backend="cpu") as engine:
        found = pooled(engine, [(prompt, made.pooling) for prompt in PROMPTS])
    with demo_engine(model=str(folder), ops_backend="cpu", **SHARDED["TP=2 × PP=2"]) as engine:
        assert pooled(engine, [(prompt, made.pooling) for prompt in PROMPTS]) == found
    for prompt, ours in zip(PROMPTS, found, strict=True):
        with torch.inference_mode():
            expected = theirs(torch.tensor([prompt])).last_hidden_state[0, -1]
        np.testing.assert_allclose(values(ours), expected.numpy(), atol=1e-4)
