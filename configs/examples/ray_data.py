"""A data set's questions, answered by a running application within a pipeline of Ray Data.

    python configs/examples/ray_data.py --address 127.0.0.1:34827

It is a Ray job of its own and imports none of Squadron's packages; it needs ray[serve,data]. Export
the variables that `squadron serve` printed. Each row is printed as a line of JSON. For files of
requests there is `squadron run-batch`, which goes on where it was killed.
"""

import argparse
import json
from typing import Any

import ray
from ray import serve

QUESTIONS = ["What is 17 + 25?", "What is 2 + 2?", 'Spell the word "cat".', "Count from 3 to 9."]


class Answer:
    """One of the pipeline's actors: a handle of the application, whose gateways share its engines
    out.
    """

    def __init__(self) -> None:
        self._handle = serve.get_app_handle("squadron")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """All of a batch are asked at once, and batched with others' by the engines."""
        asked = [
            {"messages": [{"role": "user", "content": str(question)}], "temperature": 0, "max_tokens": 64}
            for question in batch["question"]
        ]
        answers = [response.result() for response in [self._handle.chat.remote(request) for request in asked]]
        for answer in answers:
            if answer["error"] is not None:
                raise RuntimeError(answer["error"]["message"])
        return {
            "question": batch["question"],
            "answer": [answer["outputs"][0]["text"] for answer in answers],
            "weights_version": [answer["weights_version"] or "" for answer in answers],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default=None, help="of the Ray cluster (default: RAY_ADDRESS)")
    arguments = parser.parse_args()
    ray.init(arguments.address, log_to_driver=False)
    rows = ray.data.from_items([{"question": question} for question in QUESTIONS])
    # The actors only wait for answers, so they need no core.
    actors = ray.data.ActorPoolStrategy(size=2)
    for row in rows.map_batches(Answer, batch_size=2, compute=actors, num_cpus=0).iter_rows():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
