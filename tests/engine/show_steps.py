"""Two requests on the demo checkpoint, step by step, as the timeline has them: the example of
docs/a-step.md.

python -m tests.engine.show_steps
"""

import dataclasses
from unittest.mock import patch

import numpy as np

import engine.core.llm_engine
from engine.batch.batch import build_request
from engine.records.timeline import StepRecord
from engine.request import ChatPrompt
from engine.sampling_params import SamplingParams
from engine.step import ExecuteModelRequest
from tests.engine.support.arrivals import add_request
from tests.engine.support.demo import demo_engine
from tests.engine.support.workloads import TOKENIZER

SHOWN_STEP = 4


def main() -> None:
    requests: list[ExecuteModelRequest] = []

    def keep(*arguments):
        requests.append(build_request(*arguments))
        return requests[-1]

    with (
        patch.object(engine.core.llm_engine, "build_request", keep),
        demo_engine(ops_backend="auto", dtype="auto", max_num_batched_tokens=32, max_num_seqs=8) as squadron,
    ):
        add_request(squadron, "days", chat("What day comes after Monday?"), SamplingParams(temperature=0, max_tokens=8))
        told = [output for _ in range(3) for output in squadron.step()]
        params = SamplingParams(temperature=0.8, seed=7, max_tokens=6)
        add_request(squadron, "facts", chat("What is Squadron? Tell me about it, please."), params)
        while squadron.has_unfinished_requests():
            told += squadron.step()
        print("step  sequences: positions computed             samples  driver     workers    process")
        for record in squadron.recorder.timeline.records:
            print(line(record))
        print(f"\nThe request of step {SHOWN_STEP}:\n")
        for field in dataclasses.fields(ExecuteModelRequest):
            if field.name != "sampling":
                print(f"  {field.name:<20} {show(getattr(requests[SHOWN_STEP], field.name))}")
        print("\nThe deltas of 'days':\n")
        for output in told:
            if output.request_id == "days":
                new = output.outputs[0]
                print(
                    f"  first_index={new.first_index} token_ids={new.token_ids} text={new.text!r} {new.finish_reason}"
                )
        print("\nWhere the time of 'facts' went:\n")
        for phase, seconds in squadron.recorder.why("facts").seconds.items():
            print(f"  {phase:<8} {seconds * 1e3:7.2f} ms")


def chat(question: str) -> list[int]:
    return TOKENIZER.encode_chat(ChatPrompt([{"role": "user", "content": question}]))


def line(record: StepRecord) -> str:
    spans = [
        f"{request_id} {start}" + (f"-{start + count - 1}" if count > 1 else "")
        for request_id, start, count in zip(record.request_ids, record.starts, record.num_tokens, strict=True)
    ]
    driver, process = record.submitted - record.schedule_start, record.processed - record.finished
    return (
        f"{record.step:>4}  {', '.join(spans):<42} {record.num_samples:>4}  {driver * 1e6:6.0f} us "
        f"{record.execute_ns[0] / 1e6:8.2f} ms {process * 1e6:7.0f} us"
    )


def show(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


if __name__ == "__main__":
    main()
