"""What other threads may have done to a running engine, for all of its requests."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from engine.core.llm_engine import LLMEngine
from engine.errors import EngineDead
from engine.executor import Weights
from engine.frontend.commands import Commands
from engine.frontend.intermission import Intermissions, Mode, check_level, check_mode, check_tags
from engine.request import Arrival


class Controls:
    """The futures end when it is done: with EngineDead where the engine has given up. `mode`: what
    becomes of the requests that run, see `Mode`. Raises InvalidRequest for arguments that are not
    among those that there are.
    """

    def __init__(
        self,
        engine: LLMEngine,
        commands: Commands,
        release: Callable[[Arrival], None],
        check_health: Callable[[], None],
    ) -> None:
        """`release`: see `Intermissions`. `check_health` raises EngineDead."""
        self.intermissions = Intermissions(engine, release)  # for the thread that executes the commands
        self._leave_blocks = engine.leave
        self._post = commands.post
        self._check_health = check_health

    @property
    def is_paused(self) -> bool:
        return self.intermissions.is_paused

    @property
    def is_sleeping(self) -> bool:
        return self.intermissions.sleep_level > 0

    def pause(self, mode: Mode = "abort") -> "Future[None]":
        """Begin no request until `resume`."""
        check_mode(mode)
        return self._ask(partial(self.intermissions.pause, mode))

    def resume(self) -> "Future[None]":
        """Of all pauses so far, also of those that still wait for requests."""
        return self._ask(self._resume)

    def update_weights(
        self, weights: Weights | None, mode: Mode = "wait", changed: Callable[[], None] | None = None
    ) -> "Future[None]":
        """Every rank has them when the future ends. It ends with InvalidConfig where a rank cannot
        have them: then every rank has those from before. `changed` is called in the engine's thread
        before the first token that is computed with them.
        """
        check_mode(mode)
        return self._ask(partial(self.intermissions.update, weights, mode, changed))

    def sleep(self, level: int = 1, mode: Mode = "abort") -> "Future[None]":
        """Free the cache, and on level 2 the weights, until `wake_up`."""
        check_mode(mode)
        check_level(level)
        return self._ask(partial(self.intermissions.sleep, level, mode))

    def wake_up(self, tags: Sequence[str] | None = None, awake: Callable[[], None] | None = None) -> "Future[None]":
        """Of what `sleep` has freed; None: of all. The engine goes on once it has all: before its
        first token `awake` is called in its thread.
        """
        return self._ask(partial(self.intermissions.wake_up, check_tags(tags), awake))

    def leave(self, most_blocks: int) -> "Future[None]":
        """The engine is to end: see `LLMEngine.leave`."""
        return self._ask(partial(self._leave, most_blocks))

    def _leave(self, most_blocks: int, done: "Future[None]") -> None:
        if done.set_running_or_notify_cancel():
            self._leave_blocks(most_blocks, done)

    def _ask(self, begin: "Callable[[Future[None]], None]") -> "Future[None]":
        done: Future[None] = Future()
        try:
            self._check_health()
            self._post(begin, done)
        except EngineDead as error:
            done.set_exception(error)
        return done

    def _resume(self, done: "Future[None]") -> None:
        self.intermissions.resume()
        if done.set_running_or_notify_cancel():
            done.set_result(None)
