"""What other threads leave to be done is done by one thread, in order, and answered."""

import asyncio
import threading

import pytest

from engine.errors import EngineDead
from engine.frontend.commands import Commands


async def test_an_answer_comes_from_the_thread_that_does_the_commands() -> None:
    commands = Commands()
    done: list[str] = []
    is_over = False

    def work() -> None:
        while not is_over:
            commands.do_all()
            commands.wait()

    def end() -> None:
        nonlocal is_over
        is_over = True
        commands.wake()

    thread = threading.Thread(target=work)
    thread.start()
    commands.post(lambda: done.append("first"))
    assert await commands.ask(threading.get_ident) == thread.ident
    assert done == ["first"]
    with pytest.raises(KeyError, match="not known"):
        await commands.ask(lambda: {}["not known"])
    commands.post(end)
    await asyncio.to_thread(thread.join)


async def test_after_the_end_nothing_is_taken_that_nobody_would_do() -> None:
    commands = Commands()
    done: list[str] = []
    commands.post(lambda: done.append("before"))
    commands.close()
    with pytest.raises(EngineDead, match="shut down"):
        commands.post(lambda: done.append("after"))
    with pytest.raises(EngineDead, match="shut down"):
        await asyncio.wait_for(commands.ask(lambda: "never"), 30)
    commands.do_all()
    assert done == ["before"]


def test_whoever_waits_is_woken_without_a_command() -> None:
    commands = Commands()
    thread = threading.Thread(target=commands.wait)
    thread.start()
    commands.wake()
    thread.join()
    assert len(commands) == 0


async def test_a_question_that_nobody_waits_for_is_not_asked() -> None:
    commands = Commands()
    asked: list[int] = []
    question = asyncio.ensure_future(commands.ask(lambda: asked.append(1)))
    await asyncio.sleep(0)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert len(commands) == 1
    commands.do_all()
    assert asked == []
