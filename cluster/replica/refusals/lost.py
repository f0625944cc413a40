"""The ways in which a request can lose its engine replica."""


class EngineLost(Exception):
    """The request's engine replica is gone, or sent something impossible; `reason` is one line."""

    def __init__(self, reason: str, blocks_at: str | None = None) -> None:
        """`blocks_at`: see `Resume`."""
        super().__init__(reason)
        self.reason = reason
        self.blocks_at = blocks_at


class EngineRefused(EngineLost):
    """The replica exists, but its engine has stopped; it refuses until it is replaced."""


class RequestMoved(EngineLost):
    """The replica is being stopped, and hands the request back."""


class EngineFull(RequestMoved):
    """As many requests wait for the replica as may; the gateway keeps this one."""


class OtherArithmetic(RequestMoved):
    """The replica has another fingerprint than the one that the request's tokens came from."""
