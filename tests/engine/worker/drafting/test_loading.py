"""A draft model's weights, when it is made and when they come back."""

import json
from pathlib import Path

import torch

from engine.worker.worker import Worker
from tests.engine.support.draft_models import truncated
from tests.engine.worker.on_demo import make_config


def test_a_draft_model_of_a_shorter_context_has_all_positions_after_sleep_too(tmp_path: Path) -> None:
    folder = Path(truncated(tmp_path / "draft"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}), encoding="utf-8")
    worker = Worker(make_config(speculative_config={"model": str(folder)}, max_model_len=256))
    draft = worker._shard.draft
    assert draft is not None
    angles = draft.cos_sin
    assert len(angles) == 256
    worker.sleep(2)
    worker.hold(None)
    assert torch.equal(draft.cos_sin, angles)
