"""Keys share no cache blocks, unless they share a namespace."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.api.keys.key import Key, digest_of
from engine.core.llm_engine import LLMEngine
from engine.request import Arrival, Request
from engine.sampling_params import SamplingParams
from tests.engine.support.workloads import Knobs, finish, make_engine

PROMPT = [number * 7 % 37 for number in range(100)]
VICTIM, OTHER = Key("victim", digest_of(b"a")), Key("other", digest_of(b"b"))


@pytest.fixture
def engine() -> Iterator[LLMEngine]:
    yield make_engine(Knobs())


def num_cached(engine: LLMEngine, request: Request) -> int:
    """Tokens of the prompt that were found in the cache."""
    engine.add_request(Arrival(request, PROMPT))
    return finish(engine)[request.id].num_cached_tokens


def request(request_id: str, salt: str | None = None) -> Request:
    return Request(request_id, PROMPT, SamplingParams(max_tokens=2), cache_salt=salt)


def test_across_keys_and_within(engine: LLMEngine) -> None:
    assert num_cached(engine, VICTIM.own(request("first"))) == 0
    assert num_cached(engine, OTHER.own(request("probe"))) == 0
    assert num_cached(engine, VICTIM.own(request("again"))) == 96
    assert num_cached(engine, OTHER.own(request("again, too"))) == 96, "its own"


def test_no_salt_reaches_into_another_key(engine: LLMEngine) -> None:
    owned = VICTIM.own(request("first"))
    assert num_cached(engine, owned) == 0
    for number, salt in enumerate((None, VICTIM.name, owned.cache_salt)):
        assert num_cached(engine, OTHER.own(request(f"probe{number}", salt))) == 0
    assert num_cached(engine, request("without a key")) == 0


def test_keys_of_one_namespace(engine: LLMEngine) -> None:
    first, second = (replace(key, cache_namespace="team") for key in (VICTIM, OTHER))
    assert num_cached(engine, first.own(request("first"))) == 0
    assert num_cached(engine, second.own(request("second"))) == 96
    assert num_cached(engine, second.own(request("salted", "a"))) == 0
