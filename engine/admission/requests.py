"""The requests of an engine, from their arrival to their end."""

import time

from engine.admission.admission import Admission
from engine.admission.cache_size import outgrown_message
from engine.admission.deadlines import Deadlines, late_message
from engine.errors import CACHE_TOO_SMALL, DEADLINE_EXCEEDED, InvalidRequest
from engine.output.output_processor import OutputProcessor
from engine.outputs import RequestOutput, Why
from engine.records.recorder import Recorder
from engine.recovery.suspects import Suspects
from engine.request import Arrival
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Lane, SequenceGroup


class Requests:
    """Those that have not ended, by id. Outputs of those that end between steps are kept for the
    next one.
    """

    scheduler: Scheduler  # of the started engine

    def __init__(
        self, admission: Admission, processor: OutputProcessor, recorder: Recorder, suspects: Suspects
    ) -> None:
        self.deadlines = Deadlines[SequenceGroup]()
        self._admission = admission
        self._processor = processor
        self._recorder = recorder
        self._suspects = suspects
        self._groups: dict[str, SequenceGroup] = {}
        self._outputs: list[RequestOutput] = []

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def are_unfinished(self) -> bool:
        """Whether there are any, or outputs that were not taken."""
        return bool(self._groups or self._outputs)

    @property
    def have_outputs(self) -> bool:
        """Whether there are outputs that were not taken."""
        return bool(self._outputs)

    @property
    def are_late(self) -> bool:
        """Whether `end_late` has anything to do."""
        return time.monotonic() >= self.deadlines.first

    def add(self, arrival: Arrival) -> None:
        """Queue it; raises InvalidRequest if it could never run."""
        request = arrival.request
        if request.id in self._groups:
            raise InvalidRequest(
                f"request id {request.id!r} is running already", param="request_id", code="duplicate_id"
            )
        group = self._admission.make_group(arrival)
        if group.finished:  # its output tokens were the whole answer
            self._outputs.append(self._processor.conclude(group))
            return
        self._groups[request.id] = group
        self.scheduler.blocks.beginnings.begun(request)
        self.scheduler.add(group)
        if request.timeout is not None:
            self.deadlines.add(group, arrival.time + request.timeout)
        if request.resume.is_suspect:
            self._suspects.suspect(group)

    def abort(self, request_id: str) -> None:
        """Drop it and free its blocks at once; no output follows. Unknown ids are ignored, since it
        may just have ended.
        """
        group = self._groups.get(request_id)
        if group is not None:
            for seq in group.live:
                seq.finish_reason = "abort"
            self.remove(group)

    def fail(self, group: SequenceGroup, message: str, code: str | None = None) -> None:
        """End it with an error; the others continue."""
        self._outputs.append(self._processor.fail(group, message, code))
        self.remove(group)

    def fail_all(self, message: str) -> None:
        """End each with an error."""
        for group in list(self._groups.values()):
            self.fail(group, message)

    def end_all(self) -> None:
        """End each with what it has."""
        for group in list(self._groups.values()):
            self._outputs.append(self._processor.abort(group))
            self.remove(group)

    def end_late(self) -> None:
        """End those whose timeout has passed."""
        for group in self.deadlines.passed(time.monotonic()):
            self.fail(group, late_message(group.request), DEADLINE_EXCEEDED)

    def end_outgrown(self, lanes: list[Lane]) -> None:
        """The cache may be smaller after workers were replaced: lanes that need more than all of it
        can never continue.
        """
        for lane in lanes:
            if not lane.group.is_over:
                self.fail(lane.group, outgrown_message(lane, self.scheduler.blocks), CACHE_TOO_SMALL)

    def remove(self, group: SequenceGroup) -> None:
        """It has ended: its last output was made, or is not wanted."""
        del self._groups[group.request.id]
        group.is_over = True
        self.deadlines.remove(group)
        self.scheduler.finish(group)
        seq, blocks = group.seqs[0], self.scheduler.blocks
        blocks.beginnings.ended(group.request, seq.num_prompt_tokens, seq.block_hashes, blocks)
        self._recorder.finished(group)
        self._suspects.review()

    def forget_untold(self) -> None:
        """The weights are others now: prompt logprobs that nobody was told are computed again, also
        those of a prompt that was computed in part.
        """
        for group in self._groups.values():
            if not (group.prompt_logprobs_sent or group.seqs[0].finished):
                group.prompt_logprobs = []

    def abandon(self, message: str) -> list[RequestOutput]:
        """Last outputs of all, whatever state a failed step has left: nothing else is changed or
        freed.
        """
        outputs = self.take_outputs() + [self._processor.fail(group, message) for group in self._groups.values()]
        self._groups.clear()
        self.deadlines = Deadlines()
        return outputs

    def take_outputs(self) -> list[RequestOutput]:
        """Those of requests that ended since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def why(self, request_id: str) -> Why:
        """Of a running or recently finished request. Raises KeyError for an unknown or forgotten
        one.
        """
        group = self._groups.get(request_id)
        return self._recorder.why(request_id) if group is None else group.metrics.why(time.monotonic())
