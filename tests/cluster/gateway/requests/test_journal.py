"""The journal takes each delta once and in order, whatever arrives, and hands the next attempt all
that came.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cluster.api.service import Shortcut
from cluster.gateway.requests.journal import MAX_JOINED, Journal
from cluster.replica.delta_channel.messages import PlainDelta, as_sent
from cluster.replica.refusals.lost import EngineLost
from engine.outputs import Accumulator, CompletionOutput, RequestOutput
from engine.request import Request
from engine.sampling_params import SamplingParams


def delta(
    first_index: int, token_ids: list[int], *, attempt: int = 0, index: int = 0, finish: bool = False
) -> RequestOutput:
    text = "".join(chr(ord("a") + token_id % 26) for token_id in token_ids)
    output = CompletionOutput(index, text, token_ids, first_index, finish_reason="stop" if finish else None)
    return RequestOutput("own-1", attempt, [7, 8] if first_index == 0 else [], [output], finished=finish, prompt=None)


def make_journal(num_choices: int = 1, shortcut: Shortcut | None = None) -> Journal:
    return Journal("mine", Request("own-1", "ab", SamplingParams(n=num_choices)), shortcut)


def take(journal: Journal, news: RequestOutput, source: str) -> bool:
    """As it comes over the delta channel."""
    sent = as_sent(news)
    return journal.accept_plain(sent, source) if isinstance(sent, PlainDelta) else journal.accept(sent, source)


async def begun(shortcut: Shortcut, num_choices: int = 1) -> tuple[Journal, asyncio.Task[RequestOutput]]:
    """A journal whose reader has had its first delta, and waits for the next."""
    journal = make_journal(num_choices, shortcut)
    assert take(journal, delta(0, [1]), "a")
    await anext(journal)
    reading = asyncio.ensure_future(anext(journal))
    await asyncio.sleep(0)
    return journal, reading


async def everything(journal: Journal) -> RequestOutput:
    accumulator = Accumulator()
    async for news in journal:
        accumulator.add(news)
    assert accumulator.last is not None
    return accumulator.last


async def test_takes_deltas_in_order() -> None:
    journal = make_journal()
    assert journal.accept(delta(0, [1]), "a")
    assert journal.accept(delta(1, [2, 3]), "a")
    assert journal.accept(delta(3, [], finish=True), "a")
    whole = await everything(journal)
    assert (whole.request_id, whole.prompt_token_ids) == ("mine", [7, 8])
    assert whole.outputs == [CompletionOutput(0, "bcd", [1, 2, 3], finish_reason="stop")]


async def test_refuses_a_delta_that_came_before() -> None:
    journal = make_journal()
    assert journal.accept(delta(0, [1, 2]), "a")
    assert not journal.accept(delta(0, [1, 2]), "a")
    assert not journal.accept(delta(1, [2]), "a")
    assert journal.output_ids == [[1, 2]]


async def test_refuses_deltas_of_another_attempt() -> None:
    journal = make_journal()
    assert journal.accept(delta(0, [1]), "a")
    journal.next_attempt(is_suspect=False)
    assert journal.attempt == 1
    assert not journal.accept(delta(1, [2], attempt=0), "a")
    assert not journal.accept(delta(1, [2], attempt=2), "a")
    assert journal.accept(delta(1, [9], attempt=1), "b")
    assert journal.output_ids == [[1, 9]]


async def test_nothing_follows_the_end() -> None:
    journal = make_journal()
    assert journal.accept(delta(0, [1], finish=True), "a")
    assert not journal.accept(delta(1, [2]), "a")
    journal.fail(EngineLost("too late"))
    assert (await everything(journal)).outputs[0].token_ids == [1]


async def test_a_skipped_token_fails_the_attempt_after_what_came() -> None:
    journal = make_journal()
    assert journal.accept(delta(0, [1]), "a")
    assert not journal.accept(delta(2, [3]), "a")
    assert (await anext(journal)).outputs[0].token_ids == [1]
    with pytest.raises(EngineLost, match="choice 0 went on at token 2, 1 had come"):
        await anext(journal)


@pytest.mark.parametrize("at_once", [1, 100, 3 * MAX_JOINED])
async def test_what_a_slow_reader_finds_is_bounded(at_once: int) -> None:
    """With logprobs, an event of a whole answer would have tens of megabytes."""
    journal, num_tokens = make_journal(), 9 * MAX_JOINED
    reference = [number % 26 for number in range(num_tokens)]
    for first in range(0, num_tokens, at_once):
        last = min(first + at_once, num_tokens)
        assert journal.accept(delta(first, reference[first:last], finish=last == num_tokens), "a")
    lengths = []
    told = Accumulator()
    async for news in journal:
        lengths.append(len(news.outputs[0].token_ids))
        told.add(news)
    assert told.last is not None and told.last.outputs[0].token_ids == reference and told.last.finished
    assert max(lengths) <= max(MAX_JOINED, at_once) and len(lengths) <= 3 * num_tokens // max(MAX_JOINED, at_once)


async def test_a_slow_reader_finds_deltas_joined() -> None:
    journal = make_journal(2)
    for first_index in range(5):
        for index in range(2):
            assert journal.accept(delta(first_index, [first_index], index=index), "a")
    news = await anext(journal)
    assert [output.token_ids for output in news.outputs] == [[0, 1, 2, 3, 4]] * 2


async def test_abort_finishes_what_is_open() -> None:
    journal = make_journal(2)
    assert journal.accept(delta(0, [1], index=1), "a")
    journal.abort()
    whole = await everything(journal)
    assert [(output.index, output.token_ids, output.finish_reason) for output in whole.outputs] == [
        (0, [], "abort"),
        (1, [1], "abort"),
    ]


async def test_a_delta_without_outputs_says_that_a_replica_has_taken_the_request() -> None:
    journal = make_journal()
    assert journal.accept(RequestOutput("own-1", 0, [], [], finished=False), "a")
    assert (journal.source, journal.has_gained) == ("a", False)
    assert journal.accept(delta(0, [1]), "a")
    assert journal.has_gained
    journal.next_attempt(is_suspect=False)
    assert (journal.source, journal.has_gained) == (None, False)


async def test_what_the_first_delta_said_of_the_prompt_stays() -> None:
    """The next replica is given token ids, and may find more of them in its cache."""
    journal = make_journal()
    assert journal.accept(replace(delta(0, [1]), num_cached_tokens=1, prompt="ab"), "a")
    journal.next_attempt(is_suspect=False)
    resumed = replace(delta(1, [2], attempt=1, finish=True), prompt_token_ids=[7, 8], prompt="AB", num_cached_tokens=2)
    assert journal.accept(resumed, "b")
    whole = await everything(journal)
    assert (whole.prompt_token_ids, whole.prompt, whole.num_cached_tokens) == ([7, 8], "ab", 1)
    assert journal.prompt_token_ids == [7, 8]


async def test_the_next_attempt_alone_is_told_where_the_blocks_are() -> None:
    journal = make_journal()
    journal.next_attempt(is_suspect=False, blocks_at="there")
    assert journal.request.resume.blocks_at == "there"
    journal.next_attempt(is_suspect=False)
    assert journal.request.resume.blocks_at is None


async def test_sums_of_logprobs_are_kept_for_the_next_attempt() -> None:
    journal = make_journal(2)
    assert journal.cumulative_logprobs == []
    for index in range(2):
        news = delta(0, [1], index=index)
        news.outputs[0].cumulative_logprob = -1.5 - index
        assert journal.accept(news, "a")
    assert journal.cumulative_logprobs == [-1.5, -2.5]


async def test_a_last_word_on_a_choice_that_has_ended_is_no_repeat() -> None:
    journal = make_journal(2)
    ended = delta(0, [1], finish=True)
    ended.finished = False
    assert journal.accept(ended, "a")
    last = delta(0, [2], index=1, finish=True)
    last.outputs.insert(0, CompletionOutput(0, "", [], 1, finish_reason="stop"))
    assert journal.accept(last, "a")
    assert [choice.token_ids for choice in (await everything(journal)).outputs] == [[1], [2]]


async def test_plain_deltas_take_the_shortcut_while_the_reader_waits() -> None:
    took: list[tuple[str, list[int]]] = []
    journal, reading = await begun(lambda text, token_ids: took.append((text, list(token_ids))) is None)
    assert take(journal, delta(1, [2]), "a")
    assert take(journal, delta(2, [3, 4]), "a")
    assert not take(journal, delta(2, [3, 4]), "a")
    assert not take(journal, delta(4, [9], attempt=1), "a")
    assert took == [("c", [2]), ("de", [3, 4])]
    assert journal.output_ids == [[1, 2, 3, 4]]
    assert journal.num_shortcut_tokens == 3
    assert take(journal, delta(4, [5], finish=True), "a")
    assert (await reading).outputs == [CompletionOutput(0, "f", [5], 4, finish_reason="stop")]
    assert len(took) == 2


async def test_what_the_shortcut_refuses_comes_to_the_reader_with_all_that_follows() -> None:
    asked: list[str] = []
    journal, reading = await begun(lambda text, _: asked.append(text) is not None)
    for token_id in (2, 3, 4):
        assert take(journal, delta(token_id - 1, [token_id]), "a")
    assert asked == ["c"]  # from then on something is pending
    assert (await reading).outputs == [CompletionOutput(0, "cde", [2, 3, 4], 1)]
    assert take(journal, delta(4, [5]), "a")
    assert asked == ["c"]  # nobody waits
    assert (await anext(journal)).outputs[0].token_ids == [5]


async def test_no_shortcut_for_one_of_several_choices_nor_after_a_failure() -> None:
    journal, reading = await begun(lambda text, _: pytest.fail(text), num_choices=2)
    assert take(journal, delta(1, [2]), "a")
    assert (await reading).outputs[0].token_ids == [2]
    journal, reading = await begun(lambda text, _: pytest.fail(text))
    journal.fail(EngineLost("gone"))
    assert not take(journal, delta(1, [2]), "a")
    with pytest.raises(EngineLost, match="gone"):
        await reading


async def test_a_skipped_token_takes_no_shortcut() -> None:
    journal, reading = await begun(lambda text, _: pytest.fail(text))
    assert not take(journal, delta(2, [3]), "a")
    with pytest.raises(EngineLost, match="choice 0 went on at token 2, 1 had come"):
        await reading


async def test_no_shortcut_before_the_reader_knows_of_other_weights_however_often_they_are_told() -> None:
    """A replica tells once they are there, and again when the change is complete."""
    took: list[str] = []
    journal, reading = await begun(lambda text, _: took.append(text) is None)
    for fingerprint in ("before", "after", "after"):
        assert journal.accept(RequestOutput("own-1", 0, [], [], finished=False, fingerprint=fingerprint), "a")
    assert take(journal, delta(1, [2]), "a")
    assert took == []
    assert (await reading).fingerprint == "after"
    reading = asyncio.ensure_future(anext(journal))
    await asyncio.sleep(0)
    assert take(journal, delta(2, [3]), "a")
    assert took == ["d"]
    reading.cancel()


@pytest.mark.parametrize("seed", range(50))
async def test_random_losses_and_repeats_never_change_the_stream(seed: int) -> None:
    """Replicas that die at random, resend and resume from the journal: the reader gets the
    reference, once, part of it over a shortcut that is sometimes closed.
    """
    rng = random.Random(seed)
    reference = [rng.randrange(1000) for _ in range(40)]
    told: list[str] = []
    by_shortcut: list[str] = []

    def shortcut(text: str, _: Sequence[int]) -> bool:
        is_open = rng.random() < 0.8
        if is_open:
            told.append(text)
            by_shortcut.append(text)
        return is_open

    journal = make_journal(shortcut=shortcut)
    sent: list[RequestOutput] = []

    async def read() -> None:
        async for news in journal:
            told.extend(output.text for output in news.outputs)

    async def write() -> None:
        position = 0
        while position < len(reference):
            if rng.random() < 0.1:
                position = sum(map(len, journal.output_ids))
                journal.next_attempt(is_suspect=False)
            if sent and rng.random() < 0.3:
                take(journal, replace(rng.choice(sent)), "late")
            end = min(position + rng.randint(1, 4), len(reference))
            news = delta(position, reference[position:end], attempt=journal.attempt, finish=end == len(reference))
            sent.append(news)
            assert take(journal, replace(news), "a")
            position = end
            if rng.random() < 0.5:
                await asyncio.sleep(0)

    await asyncio.gather(read(), write())
    assert journal.output_ids == [reference]
    assert "".join(told) == delta(0, reference).outputs[0].text
    assert by_shortcut
