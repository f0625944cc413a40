"""Guesses by a draft model, at the end of a step."""

import torch
from torch import Tensor

from engine.step import ExecuteModelRequest, none_follow
from engine.worker.cache.kv_cache import KVCache
from engine.worker.device.device import Capture
from engine.worker.device.transfer import upload
from engine.worker.drafting.passes import Line, first_lines, make_pass, next_lines, with_known_ids
from engine.worker.graphs.layers import Layers
from engine.worker.head.row_sampler import RowSampler
from engine.worker.inputs import Inputs
from parallel.decoder import Decoder


class Proposer:
    """Of the rank that speaks, which has all of the draft model. Its keys and values lie in the
    blocks of the model's: what moves these moves them.

    A guess is drawn as the model draws, by the request's parameters and the position's own random
    number: it is the more often right.
    """

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        """`cache`: of the draft model, with the token ids of the model's."""
        self._model = model
        self._layers = Layers(model, cache, (0, 0, 0))
        self._inputs = Inputs(model, None)
        self._sampler = RowSampler(model, cache.token_ids, self._inputs, speaks=False)
        self._num_passes = 0

    def use_graphs(
        self, capture: Capture, *, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int
    ) -> None:
        """As `ModelRunner.use_graphs`."""
        self._layers.use_graphs(
            capture,
            self._inputs,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self._sampler.use_graphs(capture, self._layers.hidden, max_num_seqs=max_num_seqs, max_model_len=max_model_len)

    def use_tapes(self, capture: Capture, *, max_model_len: int) -> None:
        """As `Layers.use_tapes`."""
        self._layers.use_tapes(capture, self._inputs, max_model_len=max_model_len)

    def capture_graphs(self) -> None:
        """As `ModelRunner.capture_graphs`."""
        self._layers.capture_graphs()
        if self._sampler.graphs is not None:
            self._sampler.graphs.capture_all()

    def propose(self, request: ExecuteModelRequest, token_ids: Tensor) -> Tensor:
        """The tokens [D, K] int32 that the draft model guesses after those that the step has
        sampled, token_ids [R] int32, for which it waits; zeros where fewer are wanted.
        """
        lines = first_lines(request, token_ids.tolist())
        most = max(line.num_wanted for line in lines)
        guessed = torch.zeros((len(lines), most), dtype=torch.int32, device=self._model.device)
        before: list[Line] | None = None
        for column in range(max(most, 1)):
            tokens = self._run(make_pass(request, lines, self._num_passes, before))
            places = [line.place for line in lines if line.num_wanted]
            if places:
                rows = upload({"places": torch.tensor(places).numpy()}, guessed.device)["places"]
                guessed[rows, column] = tokens
            before, lines = lines, next_lines(lines)
        return guessed

    def _run(self, request: ExecuteModelRequest) -> Tensor:
        """The tokens of its sampled rows [R] int32."""
        self._num_passes += 1
        # Not in the history of tokens, which the sampler writes: it is the model's, too.
        known = with_known_ids(request, self._model.config.vocab_size)
        hidden = self._layers.run(known, self._inputs)
        sampled = self._sampler.sample(request, hidden, none_follow)
        self._inputs.drawn.keep(request.step, sampled.token_ids, is_in_ring=sampled.is_in_ring)
        return sampled.token_ids
