from engine.worker.cache.trial_steps import decode_request, mixed_request, prefill_request
from engine.worker.worker import Worker
from tests.engine.worker.on_demo import execute


def test_the_largest_step_runs_in_one_block(worker: Worker) -> None:
    request = prefill_request(num_tokens=70, max_num_seqs=9, max_model_len=32)
    assert request.context_lens.tolist() == [32, 32, 6]
    assert execute(worker, request).is_finite.tolist() == [True] * 9
    request = decode_request(max_num_seqs=9, max_model_len=70)
    assert (request.context_lens.tolist(), request.positions.tolist()) == ([70] * 9, [69] * 9)
    assert execute(worker, request).is_finite.tolist() == [True] * 9
    request = mixed_request(num_tokens=11, num_seqs=3, max_model_len=70)
    assert (request.context_lens.tolist(), request.query_starts.tolist()) == ([70] * 3, [0, 4, 8, 11])
    assert execute(worker, request).is_finite.tolist() == [True] * 3
