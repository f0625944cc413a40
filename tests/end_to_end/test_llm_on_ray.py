"""`LLM` with two ranks, on the cluster that the process is connected to, beside the server's
workers.
"""

from cluster.llm import LLM
from engine.sampling_params import SamplingParams
from tests.end_to_end.conftest import ENGINE, Reference, Server


def test_two_ranks_answer_as_one_does(server: Server, reference: Reference, questions: list[str]) -> None:
    asked = questions[:4]
    params = SamplingParams(temperature=0, max_tokens=32)
    with LLM(**(ENGINE | {"pipeline_parallel_size": 1})) as llm:
        outputs = llm.chat([[{"role": "user", "content": question}] for question in asked], params, use_tqdm=False)
    assert [(output.outputs[0].text, output.outputs[0].finish_reason) for output in outputs] == [
        reference.chat(question, 32) for question in asked
    ]
