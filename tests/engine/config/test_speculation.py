"""Drafts: keys that contradict each other, and what a draft model's own configuration is."""

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidConfig
from tests.engine.support.workloads import DEMO


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"speculative_config": {"method": "ngrams"}}, "speculative_config.method='ngrams': Input should be 'ngram'"),
        ({"speculative_config": {"num_speculative_token": 3}}, "did you mean 'speculative_config.num_speculative_tok"),
        ({"speculative_config": {"num_speculative_tokens": 32}}, "speculative_config.num_speculative_tokens=32"),
        ({"speculative_config": {"prompt_lookup_min": 9}}, "prompt_lookup_min=9 is above prompt_lookup_max=8"),
        ({"speculative_config": {"method": "draft_model"}}, "method=draft_model needs speculative_config.model"),
        ({"speculative_config": {"method": "ngram", "model": "x"}}, "speculative_config.model=x is of no use with"),
        ({"speculative_config": {"quantization": "int8"}}, "quantization=int8 is of no use with method=ngram"),
        ({"speculative_config": {"model": "x", "prompt_lookup_max": 4}}, "prompt_lookup_max=4 is of no use with"),
        ({"speculative_config": "ngram"}, "speculative_config='ngram': Input should be a valid dict"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig.create(model=DEMO, **arguments)
    assert said in str(caught.value)


def test_a_draft_model_is_a_model_of_one_rank():
    names = {"model": "file:///a%20draft", "quantization": "int8"}
    config = EngineConfig.create(model=DEMO, tokenizer=DEMO, tensor_parallel_size=2, speculative_config=names)
    assert config.draft is not None and config.speculative_config is not None
    assert (config.speculative_config.method, config.speculative_config.num_speculative_tokens) == ("draft_model", 4)
    assert (config.draft.model, config.draft.quantization, config.draft.tokenizer) == ("/a draft", "int8", None)
    assert (config.draft.world_size, config.draft.draft, config.quantization) == (1, None, None)
    elsewhere = config.with_draft(config.draft.model_copy(update={"model": "/other"}))
    assert elsewhere.draft == config.draft.model_copy(update={"model": "/other"})
    assert EngineConfig.create(**elsewhere.model_dump()) == elsewhere


@pytest.mark.parametrize("speculation", [None, {"method": "ngram"}, {}])
def test_others_have_none(speculation):
    assert EngineConfig.create(model=DEMO, speculative_config=speculation).draft is None
