"""A refusal on its way from an engine replica to a gateway."""

import pickle

import pytest

from cluster.replica.refusals.lost import EngineFull, EngineLost, EngineRefused, OtherArithmetic, RequestMoved
from cluster.replica.refusals.refusal import EngineStopping, Refusal
from engine.errors import (
    EngineDead,
    FingerprintChanged,
    InputProcessingError,
    InvalidRequest,
    Overloaded,
    SquadronError,
)


def hear(error: SquadronError) -> Exception:
    refusal: Refusal = pickle.loads(pickle.dumps(Refusal.of(error)))
    return refusal.to_exception()


def test_the_callers_mistake_arrives_whole() -> None:
    told = InvalidRequest("too long", param="prompt", code="context_length_exceeded")
    heard = hear(told)
    assert isinstance(heard, InvalidRequest)
    assert (heard.message, heard.param, heard.code) == (told.message, told.param, told.code)


def test_what_no_replica_can_mend_is_no_loss() -> None:
    heard = hear(InputProcessingError("the template failed"))
    assert type(heard) is InputProcessingError and str(heard) == "the template failed"


def test_where_the_blocks_of_a_request_are_goes_with_it() -> None:
    heard = hear(EngineStopping("it is told to stop", "10.0.0.1:5000/dev/shm/x"))
    assert isinstance(heard, RequestMoved) and heard.blocks_at == "10.0.0.1:5000/dev/shm/x"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Overloaded("4 requests wait"), EngineFull),
        (EngineStopping("it is told to stop"), RequestMoved),
        (FingerprintChanged("it computes otherwise"), OtherArithmetic),
        (EngineDead("no workers are left"), EngineRefused),
    ],
)
def test_what_another_replica_may_mend_is_a_kind_of_loss(error: SquadronError, kind: type[EngineLost]) -> None:
    heard = hear(error)
    assert type(heard) is kind and isinstance(heard, EngineLost)
    assert heard.reason == str(error)
