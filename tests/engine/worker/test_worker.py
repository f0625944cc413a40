"""One rank with the demo checkpoint, from its prompts to its tokens."""

import torch

from engine.worker.worker import Worker
from tests.engine.worker.on_demo import MODEL, PROMPTS, execute, make_config
from tests.engine.worker.steps import generate


def test_chunks_and_neighbours_change_no_token(worker: Worker) -> None:
    together = generate(lambda request: execute(worker, request), PROMPTS, 4)
    in_chunks = generate(lambda request: execute(worker, request), PROMPTS, 4, chunk=9)
    alone = [generate(lambda request: execute(worker, request), [prompt], 4)[0] for prompt in PROMPTS]
    assert together == in_chunks == alone
    assert len(set(map(tuple, together))) == 3


def test_a_draft_model_has_no_weights_either_while_its_model_sleeps() -> None:
    worker = Worker(make_config(speculative_config={"model": MODEL}))
    draft, x = worker._shard.draft, torch.ones(1, 256)
    assert draft is not None
    before = draft.head(x)
    worker.sleep(1)
    assert torch.equal(draft.head(x), before)
    worker.sleep(2)
    assert not hasattr(draft.head, "weight") and not hasattr(draft.embedding, "weight")
    worker.hold(None)
    assert torch.equal(draft.head(x), before)
