"""Ids that no other request has, and seeds that every attempt has."""

from cluster.gateway.requests.journals import Journals
from cluster.gateway.requests.naming import Naming
from engine.request import Request
from engine.sampling_params import SamplingParams


def request(**fields: object) -> Request:
    return Request("mine", "hello", SamplingParams(**fields))


def test_no_two_requests_and_no_two_gateways_give_the_same_id() -> None:
    one, other = Naming(), Naming()
    ids = {naming.as_engines_know(request()).id for naming in (one, one, other)}
    assert len(ids | {"mine"}) == 4


def test_every_attempt_has_the_seed_that_was_drawn_for_the_first() -> None:
    journals = Journals()
    with journals.open(request()) as journal:
        seed = journal.request.params.seed
        assert seed is not None
        journal.next_attempt(is_suspect=False)
        assert journal.request.params.seed == seed


def test_a_seed_that_was_given_is_kept_and_beams_have_none() -> None:
    naming = Naming()
    assert naming.as_engines_know(request(seed=5)).params.seed == 5
    assert naming.as_engines_know(request(beam_width=2, temperature=0)).params.seed is None
