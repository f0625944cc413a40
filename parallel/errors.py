"""What a checkpoint or a sharding can be refused for. Each message says what would work."""


class UnsupportedModel(ValueError):
    """config.json asks for something that no model here computes."""


class InvalidSharding(ValueError):
    """The model cannot be cut into that many tensor-parallel ranks or pipeline stages."""


class InvalidCheckpoint(ValueError):
    """A weight file is missing, damaged, or holds other tensors than config.json promises."""


class GroupError(RuntimeError):
    """A collective failed: another rank died, or did not answer within the time limit."""
