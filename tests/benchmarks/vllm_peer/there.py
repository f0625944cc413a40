"""What runs in vLLM's environment, and imports nothing of ours: `python there.py CHECKPOINT
MAX_MODEL_LEN`.

Each line of standard input is a list of requests, and is answered with a line: the seconds to the
first token of any, and to the last of all. An empty list says that it is ready.
"""

import json
import os
import sys
import time

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


def main() -> None:
    # Its libraries print, too; answers have a descriptor of their own.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    folder, max_model_len = sys.argv[1], int(sys.argv[2])
    arguments = EngineArgs(model=folder, dtype="bfloat16", max_model_len=max_model_len, enable_prefix_caching=False)
    engine = LLMEngine.from_engine_args(arguments)
    print("[]", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(engine, json.loads(line))), file=answers, flush=True)


def run(engine: LLMEngine, works: list[dict]) -> tuple[float, float]:
    started = time.perf_counter()
    first = None
    missing = sum(work["output_len"] for work in works)
    for number, work in enumerate(works):
        sampling = SamplingParams(
            temperature=0,
            max_tokens=work["output_len"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(str(number), {"prompt_token_ids": work["prompt"]}, sampling)
    while engine.has_unfinished_requests():
        for output in engine.step():
            missing -= len(output.outputs[0].token_ids)
            first = first or time.perf_counter() - started
    assert missing == 0, missing
    return first, time.perf_counter() - started


if __name__ == "__main__":
    main()
