"""What a gateway hears of an engine replica that does not take a request, or gives it back."""

from dataclasses import dataclass
from typing import Literal, Self

from cluster.replica.refusals.lost import EngineFull, EngineRefused, OtherArithmetic, RequestMoved
from engine.errors import FingerprintChanged, InputProcessingError, InvalidRequest, Overloaded, SquadronError


class EngineStopping(SquadronError):
    """The replica has been told to stop: another one should go on with its requests."""

    def __init__(self, message: str, blocks_at: str | None = None) -> None:
        """`blocks_at`: see `Resume`."""
        super().__init__(message)
        self.blocks_at = blocks_at


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why. A value, since exceptions do not travel between processes as they are."""

    reason: Literal["invalid", "failed", "overloaded", "moved", "other_arithmetic", "engine_dead"]
    message: str
    param: str | None = None
    code: str = ""
    blocks_at: str | None = None  # see `Resume`

    @classmethod
    def of(cls, error: SquadronError) -> Self:
        match error:
            case InvalidRequest():
                return cls("invalid", error.message, error.param, error.code)
            case InputProcessingError():
                return cls("failed", str(error))
            case Overloaded():
                return cls("overloaded", str(error))
            case FingerprintChanged():
                return cls("other_arithmetic", str(error))
            case EngineStopping():
                return cls("moved", str(error), blocks_at=error.blocks_at)
            case _:
                return cls("engine_dead", str(error))

    def to_exception(self) -> Exception:
        """The exception again; what another replica may mend as one of the EngineLost kinds."""
        match self.reason:
            case "invalid":
                return InvalidRequest(self.message, param=self.param, code=self.code)
            case "failed":
                return InputProcessingError(self.message)
            case "overloaded":
                return EngineFull(self.message)
            case "moved":
                return RequestMoved(self.message, self.blocks_at)
            case "other_arithmetic":
                return OtherArithmetic(self.message)
            case "engine_dead":
                return EngineRefused(self.message)
