"""How a request and the engine replica that had it part."""


class EngineLost(Exception):
    """The engine replica that a request was on is gone, or sent something that cannot be; `reason`
    is one line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineRefused(EngineLost):
    """The replica is there, but its engine has stopped: it will answer so until it is replaced."""


class RequestMoved(EngineLost):
    """The replica is told to stop, and gives the request back."""


class OtherArithmetic(RequestMoved):
    """The replica would go on with other tokens than the one that the request's tokens came
    from.
    """
