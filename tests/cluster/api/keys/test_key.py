"""A key's requests: their share, their priority, and which cached prefixes they see."""

from dataclasses import replace

from cluster.api.keys.key import Key, digest_of
from engine.request import Request, Share
from engine.sampling_params import SamplingParams

KEY = Key("team", digest_of(b"one"), priority=3, weight=2.0)
OTHER = Key("other", digest_of(b"two"))


def request(**fields: object) -> Request:
    return Request("r", [1], SamplingParams(), **fields)  # type: ignore[arg-type]


def test_share() -> None:
    assert KEY.own(request()).share == Share("team", 2.0)


def test_none_is_more_urgent_than_the_key() -> None:
    assert [KEY.own(request(priority=asked)).priority for asked in (0, 2, 3, 7)] == [3, 3, 3, 7]


def test_prefixes_are_shared_within_a_namespace_only() -> None:
    salts = [key.own(request(cache_salt=salt)).cache_salt for key in (KEY, OTHER) for salt in (None, "a")]
    assert len(set(salts)) == 4 and not {None, "a"} & set(salts)
    first, second = (replace(key, cache_namespace="both") for key in (KEY, OTHER))
    assert first.own(request()).cache_salt == second.own(request()).cache_salt
    assert first.own(request(cache_salt="a")).cache_salt != first.own(request()).cache_salt
    assert "\n" in str(first.own(request(cache_salt="a")).cache_salt), "which no request's own salt has"
