"""What a tree answers that has the sampling step of CONTRIBUTING: requests of HTTP's types, on the
demo checkpoint. `python -m tests.worked_step` in such a tree prints it as JSON.
"""

import json
from pathlib import Path
from typing import Any

import engine
from cluster.api.models.model import Model
from cluster.api.requests.completions import completion_call
from cluster.api.requests.protocol import CompletionRequest
from cluster.api.requests.validate import validate
from engine.checkpoint.model_config import ModelConfig
from engine.errors import InvalidRequest
from engine.sampling_params import SamplingParams
from tests.engine.exactness.test_demo_exactness import KINDS
from tests.engine.support.demo import DEMO, answers, demo_engine, held_out_prompts

MODEL = Model(name="demo", max_model_len=256, vocab_size=ModelConfig.load(DEMO).vocab_size)
HOT = {"temperature": 2.0, "seed": 7, "ignore_eos": True}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "without": HOT,
    "margin 0": HOT | {"margin": 0.0},
    "margin 3": HOT | {"margin": 3},
    "margin 100": HOT | {"margin": 100.0},
}


def params(prompt: list[int], fields: dict[str, Any]) -> SamplingParams:
    request = validate(CompletionRequest, {"prompt": prompt, "max_tokens": 16, **fields})
    return completion_call(request, MODEL).params


def refusal(fields: dict[str, Any]) -> str | None:
    try:
        params([5], fields)
    except InvalidRequest as error:
        return error.message
    return None


def main() -> None:
    (prompt,) = held_out_prompts(1)
    requests = [(prompt, params(prompt, fields)) for fields in ASKED.values()]
    with demo_engine() as llm_engine:
        together = [answer.outputs[0].token_ids for answer in answers(llm_engine, requests)]
        alone = [answers(llm_engine, [request])[0].outputs[0].token_ids for request in requests]
    print(
        json.dumps(
            {
                "folder": str(Path(engine.__path__[0]).parent),
                "tokens": dict(zip(ASKED, together, strict=True)),
                "is_exact": together == alone,
                "refusals": [refusal({"margin": value}) for value in (-1, 101, "3")]
                + [refusal({"margin": 1.0, "beam_width": 2})],
                "is_a_kind": any("margin" in kind for kind in KINDS),
            }
        )
    )


if __name__ == "__main__":
    main()
