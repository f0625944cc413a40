"""Errors for checkpoints and shardings. Each message says what would work."""


class UnsupportedModel(ValueError):
    """config.json describes something that no model here supports."""


class InvalidSharding(ValueError):
    """The model cannot be cut into that many tensor-parallel ranks or pipeline stages."""


class InvalidCheckpoint(ValueError):
    """A weight file is missing or damaged, or its tensors do not match config.json."""


class InvalidAdapter(ValueError):
    """An adapter's files are missing or damaged, do not fit the model, or ask for what is not
    computed.
    """


class GroupError(RuntimeError):
    """A collective failed: another rank died, or did not answer within the time limit."""
