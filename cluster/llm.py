"""Offline batches: `LLM(model=...).generate(prompts)`, in this process for one rank, otherwise on
Ray.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from cluster.offline.engine import OfflineEngine
from cluster.offline.given import (
    GivenAdapters,
    GivenWeights,
    LoRARequest,
    OfflineAdapters,
    OfflineWeights,
    one_each,
)
from cluster.offline.pooled_outputs import EmbeddingRequestOutput, Run, ScoringRequestOutput, embed, judge
from cluster.progress import progress
from engine.checkpoint.model_folder import resolve_paths
from engine.config import EngineConfig
from engine.outputs import Accumulator, RequestOutput
from engine.request import ChatPrompt, Prompt, Request
from engine.sampling_params import SamplingParams

__all__ = ["LLM", "LoRARequest"]

Conversation = list[dict[str, Any]]


class LLM:
    """An engine of its own, for as long as the object is open: use it in a `with`, or call
    `shutdown`.

    Arguments are those of `EngineConfig`. With more than one rank the workers run on the Ray
    cluster that this process is connected to, or on one that is started on this machine.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        unlimited = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        config = EngineConfig.create(**resolve_paths({"model": model, **unlimited, **arguments}))
        self._engine = OfflineEngine(config)
        self._adapters = OfflineAdapters(self._engine.engine.config)
        self._weights = OfflineWeights(self._engine.engine)
        self._numbers = iter(range(1 << 63))  # of requests

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop the workers, and Ray if it was started here; idempotent."""
        self._engine.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: GivenAdapters = None,
    ) -> list[RequestOutput]:
        """The whole answer to each prompt (a text, or token ids), in the order of the prompts.

        `sampling_params` are for all of them, or one for each; those of
        `get_default_sampling_params` if there are none. `lora_request`: an adapter likewise. Raises
        InvalidRequest for the first prompt that is invalid.
        """
        every: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        return self._run(every, self._given(sampling_params), use_tqdm, lora_request)

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without any gets: the model's, by its generation_config.json."""
        engine = self._engine.engine
        return SamplingParams(**engine.model_config.sampling_defaults(engine.config))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        lora_request: GivenAdapters = None,
    ) -> list[RequestOutput]:
        """The assistant's next message to each conversation, a list of {"role": ..., "content":
        ...}, as text; `tools`, as the OpenAI API has them, can be called in all of them. See
        `generate`.
        """
        conversations: Any = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [ChatPrompt(conversation, tools=tools) for conversation in conversations]
        return self._run(prompts, self._given(sampling_params), use_tqdm, lora_request)

    def _given(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> SamplingParams | Sequence[SamplingParams]:
        return self.get_default_sampling_params() if sampling_params is None else sampling_params

    def embed(
        self,
        prompts: str | Sequence[str] | Sequence[list[int]],
        *,
        dimensions: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt, of its first `dimensions` numbers if given. Raises
        InvalidRequest, or InputProcessingError if one failed.
        """
        every: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        return embed(self._engine.engine, every, dimensions, self._pooler(use_tqdm))

    def score(
        self,
        text_1: str,
        text_2: str | Sequence[str],
        *,
        instruction: str | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How well each document of `text_2` fits the query `text_1`, by a reranker. Raises as
        `embed`.
        """
        documents = [text_2] if isinstance(text_2, str) else text_2
        return judge(self._engine.engine, text_1, documents, instruction, self._pooler(use_tqdm))

    @property
    def weights_version(self) -> str | None:
        """Of what the answers are computed with; None: the model's own."""
        return self._weights.version

    def update_weights(self, weights: GivenWeights, version: str | None = None) -> str:
        """Compute with these weights from now on: those of a checkpoint's folder, or whole tensors
        by the model's names, of which a copy is kept. Every rank has them when this returns; the
        version's name; if `version` is None, its number, or the next one that nobody has given as
        a name. Cached prefixes are forgotten.

        Raises InvalidConfig naming what is wrong: then nothing has changed.
        """
        return self._weights.update(weights, version)

    def pause(self, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Begin no request until `resume`: `generate` called in another thread waits. `mode`: what
        becomes of those that run: they are ended with what they have ("abort"), end first ("wait"),
        or go on at `resume` ("keep").
        """
        self._engine.engine.controls.pause(mode).result()

    def resume(self) -> None:
        self._engine.engine.controls.resume().result()

    def sleep(self, level: int = 1, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Free the cache, and on level 2 the weights, until `wake_up`. `mode`: as of `pause`."""
        self._engine.engine.controls.sleep(level, mode).result()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Of "weights" and "kv_cache"; None: of both. Weights that were freed are read again, as
        they were, unless `update_weights` has given others meanwhile.
        """
        self._engine.engine.controls.wake_up(tags).result()

    def _pooler(self, use_tqdm: bool) -> Run:
        return lambda prompts, pooling, special: self._run(
            prompts, None, use_tqdm, pooling=pooling, add_special_tokens=special
        )

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        lora_request: GivenAdapters = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """`options`: fields of `Request`."""
        params = one_each(sampling_params, len(prompts))
        adapters = self._adapters.one_each(lora_request, len(prompts))
        numbers: dict[str, int] = {}
        with self._engine.listening() as next_outputs:
            try:
                for number, prompt in enumerate(prompts):
                    request_id = f"llm-{next(self._numbers)}"
                    request = Request(request_id, prompt, params[number], adapter=adapters[number], **options)
                    self._engine.add_request(request)
                    numbers[request_id] = number
                return self._collect(numbers, next_outputs, use_tqdm)
            except BaseException:
                for request_id in numbers:
                    self._engine.abort(request_id)
                raise

    def _collect(
        self, numbers: dict[str, int], next_outputs: Callable[[], list[RequestOutput]], use_tqdm: bool
    ) -> list[RequestOutput]:
        accumulators = [Accumulator() for _ in numbers]
        num_open = len(numbers)
        num_tokens = 0
        with progress(total=num_open, desc="requests", delay=0, disable=not use_tqdm) as bar:
            while num_open:
                for delta in next_outputs():
                    if delta.request_id not in numbers:  # another thread's, or left by an interrupted call
                        continue
                    accumulators[numbers[delta.request_id]].add(delta)
                    num_tokens += sum(len(output.token_ids) for output in delta.outputs)
                    if delta.finished:
                        num_open -= 1
                        bar.update()
                elapsed = bar.format_dict["elapsed"]
                if elapsed:
                    bar.set_postfix_str(f"{num_tokens / elapsed:.0f} tokens/s", refresh=False)
        outputs = [accumulator.last for accumulator in accumulators if accumulator.last is not None]
        for output in outputs:
            output.fingerprint = self._engine.engine.observer.fingerprint
            output.weights_version = self.weights_version
        return outputs
