"""When a sequence ends, and what of its text is shown."""

from engine.sampling_params import SamplingParams
from tests.engine.arrivals import add_request
from tests.engine.workloads import EOS, TOKENIZER, VOCAB, Knobs, finish, make_engine


def test_the_end_token_ends_and_is_not_shown_unless_wanted():
    for shown, include in (("", False), (TOKENIZER.decode([EOS]), True)):
        engine = make_engine(Knobs())
        for number in range(60):
            params = SamplingParams(seed=number, max_tokens=40, include_stop_str_in_output=include)
            add_request(engine, f"r{number}", [number % VOCAB], params)
        ended = [o.outputs[0] for o in finish(engine).values() if o.outputs[0].finish_reason == "stop"]
        assert len(ended) > 10
        for choice in ended:
            assert choice.token_ids[-1] == EOS and choice.stop_reason is None
            assert choice.text == TOKENIZER.decode(choice.token_ids[:-1]) + shown
