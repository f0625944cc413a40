"""A rollout loop: sample answers from a running application, take a step of policy gradient on
them, give the application the new weights, and sample again.

    python configs/examples/rollout.py --address 127.0.0.1:34827 --model configs/demo

With `--broadcast 10.0.0.5`, an address of this machine that the cluster's nodes can reach, the
weights go to all of them in one collective, else through Ray's object store.

It is a Ray job of its own and imports none of Squadron's packages; it needs ray[serve], torch and
transformers. Export the variables that `squadron serve` printed. Each step prints a line of JSON.
"""

import argparse
import json
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import serve
from transformers import AutoModelForCausalLM

PROMPTS = ["Once upon a time", "The sea is", "Count from 3 to 9."]
SAMPLES = 4  # of each prompt
TOKENS = 16


def sample(handle: Any, seed: int) -> list[dict[str, Any]]:
    """Answers with the logprobs of their tokens. All are asked for before the first is awaited."""
    asked = [
        {"prompt": prompt, "max_tokens": TOKENS, "temperature": 1.0, "seed": seed + number, "logprobs": 1}
        for prompt in PROMPTS
        for number in range(SAMPLES)
    ]
    answers = [response.result() for response in [handle.generate.remote(request) for request in asked]]
    for answer in answers:
        assert answer["error"] is None, answer["error"]
    return answers


def reward(answer: dict[str, Any]) -> float:
    """A trainer's own: here, the share of vowels."""
    text = answer["outputs"][0]["text"]
    return sum(letter in "aeiou" for letter in text.lower()) / max(len(text), 1)


def sampled_logprobs(answer: dict[str, Any]) -> list[float]:
    """As the engine had them when it drew the tokens."""
    choice = answer["outputs"][0]
    return [position[token][0] for token, position in zip(choice["token_ids"], choice["logprobs"], strict=True)]


def step(model: Any, optimizer: torch.optim.Optimizer, answers: list[dict[str, Any]]) -> float:
    """One of policy gradient; returns the largest difference between the trainer's logprobs and the
    engine's, which is that of their arithmetic.
    """
    rewards = torch.tensor([reward(answer) for answer in answers])
    advantages = rewards - rewards.mean()
    optimizer.zero_grad()
    furthest = 0.0
    for answer, advantage in zip(answers, advantages, strict=True):
        prompt, tokens = answer["prompt_token_ids"], answer["outputs"][0]["token_ids"]
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
        logprobs = logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]
        furthest = max(furthest, (logprobs.detach() - torch.tensor(sampled_logprobs(answer))).abs().max().item())
        (-advantage * logprobs.sum() / len(answers)).backward()
    optimizer.step()
    return furthest


class Objects:
    """Weights that the application fetches from Ray's object store, where they live as long as this
    job: that is as long as the application may need them.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def give(self, tensors: dict[str, torch.Tensor], version: str) -> Any:
        weights = {name: ray.put(tensor) for name, tensor in tensors.items()}
        return self.handle.update_weights.remote({"weights": weights, "version": version}).result()


class Broadcasts:
    """Weights that this job sends as rank 0 of a group with a receiver on each node. The receivers
    keep them: the application needs this job no more.
    """

    def __init__(self, handle: Any, address: str) -> None:
        self.handle = handle
        self.store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        meeting = {"master_address": address, "master_port": self.store.port}
        told = handle.init_weights_update_group.remote(meeting).result()
        assert told["error"] is None, told["error"]
        store = dist.PrefixStore("weights", self.store)  # the group's name
        self.group = dist.ProcessGroupGloo(store, 0, told["world_size"], timedelta(seconds=300))

    def give(self, tensors: dict[str, torch.Tensor], version: str) -> Any:
        described = {
            name: {"dtype": str(tensor.dtype), "shape": list(tensor.shape)} for name, tensor in tensors.items()
        }
        changed = self.handle.update_weights.remote({"tensors": described, "version": version})
        for tensor in tensors.values():
            self.group.broadcast(tensor.contiguous(), 0).wait()
        return changed.result()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", default=None, help="of the Ray cluster (default: RAY_ADDRESS)")
    parser.add_argument("--model", required=True, help="folder of the checkpoint that is served")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--broadcast", metavar="ADDRESS", help="of this machine (default: by Ray's object store)")
    arguments = parser.parse_args()
    ray.init(arguments.address, log_to_driver=False)
    handle = serve.get_app_handle("squadron")
    weights = Broadcasts(handle, arguments.broadcast) if arguments.broadcast else Objects(handle)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(1, arguments.steps + 1):
        answers = sample(handle, seed=1000 * number)
        furthest = step(model, optimizer, answers)
        told = weights.give(model.state_dict(), f"step-{number}")
        assert told["error"] is None, told["error"]
        mean = sum(map(reward, answers)) / len(answers)
        print(json.dumps(told | {"mean_reward": mean, "logprobs_differ_by": furthest}))
    answers = sample(handle, seed=0)
    assert {answer["weights_version"] for answer in answers} == {f"step-{arguments.steps}"}


if __name__ == "__main__":
    main()
