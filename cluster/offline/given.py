"""What callers of `LLM` give for all prompts, or for each: parameters, adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.checkpoint.adapters import check_has_adapters, read_adapter
from cluster.offline.weights import GivenWeights, OfflineWeights
from engine.config import EngineConfig
from engine.errors import InvalidConfig, InvalidRequest, in_a_line
from engine.request import Adapter
from engine.sampling_params import SamplingParams

__all__ = ["GivenAdapters", "GivenWeights", "LoRARequest", "OfflineAdapters", "OfflineWeights", "one_each"]


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Which adapter a prompt is for. `lora_int_id` is of no effect: an adapter is known by what its
    files hold.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str  # a folder in PEFT's layout, at the same path on every node


GivenAdapters = LoRARequest | Sequence[LoRARequest | None] | None


class OfflineAdapters:
    """Those that were asked for. Each is read and checked when it is first named."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._read: dict[LoRARequest, Adapter] = {}

    def one_each(self, given: GivenAdapters, num_prompts: int) -> list[Adapter | None]:
        """Of each prompt. Raises InvalidRequest."""
        if given is None or isinstance(given, LoRARequest):
            return [self._adapter(given)] * num_prompts
        if len(given) != num_prompts:
            raise InvalidRequest(f"{len(given)} lora_request for {num_prompts} prompts", param="lora_request")
        return [self._adapter(each) for each in given]

    def _adapter(self, asked: LoRARequest | None) -> Adapter | None:
        if asked is None:
            return None
        if asked not in self._read:
            try:
                spec = check_has_adapters("lora_request", self._config)
                folder = Path(asked.lora_path).absolute()
                self._read[asked] = read_adapter(asked.lora_name, folder, spec, self._config.max_lora_rank)
            except InvalidConfig as error:
                raise InvalidRequest(in_a_line(error), param="lora_request") from None
        return self._read[asked]


def one_each(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    """Of each prompt. Raises InvalidRequest."""
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if len(sampling_params) != num_prompts:
        raise InvalidRequest(
            f"{len(sampling_params)} sampling_params for {num_prompts} prompts", param="sampling_params"
        )
    return sampling_params
