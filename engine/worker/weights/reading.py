"""A rank reads its slices of the weights: from a checkpoint's folder, from whole tensors, or drawn
by a seed.
"""

from engine.checkpoint.fingerprint import Sample
from engine.checkpoint.manifest import Manifest
from engine.checkpoint.sample import sample_of, weights_digest
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Weights
from engine.worker.device.errors import out_of_memory_advice
from engine.worker.ranks import Ranks
from parallel.decoder import Decoder
from parallel.errors import InvalidCheckpoint
from parallel.given.tensors import GivenTensors
from parallel.spec.stored import EXPERTS, refuse_published


def sample_weights(config: EngineConfig, weights: Weights | None) -> Sample:
    """What tells them from others, as far as their files are on this node."""
    if weights is not None:
        return Sample(weights.digest, {})
    sample = sample_of(config.model)
    return Sample(f"dummy {config.seed}, {sample.rest}", {}) if config.load_format == "dummy" else sample


def load_weights(model: Decoder, config: EngineConfig, ranks: Ranks, weights: Weights | None) -> None:
    """Of that version; None: those that are configured. What the model had goes, a layer at a time.
    Raises InvalidConfig: then the model is of no use until it is given others.
    """
    advice = "raise tensor_parallel_size or pipeline_parallel_size, or set quantization to int8 or int4"
    try:
        with out_of_memory_advice("the weights were loaded", advice):
            if weights is not None and weights.tensors is not None:
                refuse_published(model.config)
                shapes, unused = model.config.shapes(), model.config.unused
                model.load(GivenTensors(weights.tensors, shapes, unused, model.dtype, model.device))
            elif config.load_format == "dummy" and weights is None:
                model.load_dummy_weights(config.seed)
            else:
                _load_folder(model, config.model if weights is None else _unchanged(weights), ranks)
    except (InvalidCheckpoint, InvalidConfig) as error:
        raise InvalidConfig(str(error) if weights is None else f"weights of {weights}: {error}") from None


def _unchanged(weights: Weights) -> str:
    """Its folder; raises InvalidCheckpoint if that holds something else by now."""
    folder = str(weights.folder)
    try:
        sample = weights_digest(folder)
    except OSError as error:
        raise InvalidCheckpoint(f"{folder} cannot be read any more: {error}") from None
    if sample != weights.sample:
        raise InvalidCheckpoint(f"{folder} has changed since they were read from it")
    return folder


def _load_folder(model: Decoder, folder: str, ranks: Ranks) -> None:
    # A stage's ranks share a node, so each tensor of its files is verified there once.
    manifest = Manifest.load(folder)
    digests = {}
    if manifest is not None:
        digests = manifest.share(ranks.tp.rank, ranks.tp.size)
        digests |= {name: digest for name, digest in manifest.tensors.items() if EXPERTS in name}
    model.load_weights(folder, digests)
