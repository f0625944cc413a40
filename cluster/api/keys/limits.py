"""What each API key may ask for in a minute and at once, counted in one gateway.

Each of N gateways allows the N-th part of a limit, rounded up. A count shared by all of them would
cost a call per request, and be one more thing that can be lost.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Message, Scope, Send

from cluster.api.arrivals import KEY, TOLD
from cluster.api.errors import ApiError
from cluster.api.keys.key import Key
from engine.request import NO_KEY, Share

NEWEST_PART = 0.2  # of the mean of how long a key's requests take: that of the newest one
CALLER = "squadron.caller"  # among a scope's `extensions`


class Bucket:
    """An amount that is used up, and comes back evenly: all of it within a minute. May go below
    zero for what turns out to have been more.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.size = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._since = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self._level + (now - self._since) * self.size / 60, self.size)
        self._since = now
        return self._level

    def take(self, amount: float) -> None:
        self._level = min(self.level - amount, self.size)

    def seconds_until(self, amount: float) -> float:
        """Until so much is there."""
        return max(amount - self.level, 0.0) * 60 / self.size


class Turn:
    """One HTTP request of a key, from its headers to the end of its answer."""

    def __init__(self, account: "_Account") -> None:
        self._account = account
        self._since = account.clock()
        self._reserved = 0
        self._used: Callable[[], int] | None = None
        self._begun = 0

    def reserve(self, num_tokens: int) -> None:
        """Take as many tokens of the key's as the request may need; raises ApiError if it has not
        so many left. One that needs more than a minute's needs the whole of it.
        """
        tokens = self._account.tokens
        if tokens is None:
            return
        needed = min(num_tokens, tokens.size)
        if tokens.level < needed:
            raise self._account.refusal(
                f"this request may need {num_tokens} tokens of {tokens.size} a minute, and {max(tokens.level, 0):.0f} "
                "are left",
                tokens.seconds_until(needed),
                tells_limits=False,  # `telling` does
            )
        tokens.take(needed)
        self._reserved = needed

    def follow(self, used: Callable[[], int]) -> None:
        """`used`: how many tokens were used so far."""
        self._used = used

    def begin(self, num_tokens: int) -> None:
        """Engines are asked to compute a prompt of about so many tokens."""
        self._begun += num_tokens

    def settle(self, num_tokens: int) -> None:
        """What was begun is in `used`, or was not computed."""
        self._begun -= num_tokens

    def forgive(self) -> None:
        """What was begun does not count: the whole call is refused, for one of its prompts."""
        self._begun = 0

    def end(self) -> None:
        """Give back what was reserved and not used, or take what was used beyond it. A prompt that
        was begun and of which nothing was told, as its client has left, counts as used.
        """
        self._account.ended(self._since)
        if self._account.tokens is not None:
            used = self._used() if self._used else 0
            self._account.tokens.take(used + self._begun - self._reserved)

    def telling(self, send: Send) -> Send:
        """`send`, with the key's limits among the answer's headers."""

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._account.headers()]}
            await send(message)

        return tell


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    key: Key
    turn: Turn | None  # of a key with limits
    share: Share = NO_KEY  # of the queue, if several keys have it together


def caller_of(scope: Scope) -> Caller | None:
    """None where no key is needed."""
    caller: Caller | None = scope.get("extensions", {}).get(CALLER)
    return caller


def tell_key(scope: Scope, name: str) -> None:
    """The name of the valid key that the request shows, to what counts answers."""
    scope.get("extensions", {}).get(TOLD, {})[KEY] = name


class KeyLimits:
    """Lives in one event loop."""

    def __init__(self, num_gateways: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._num_gateways = num_gateways
        self._clock = clock
        self._accounts: dict[str, _Account] = {}  # by the key's name

    def begin(self, key: Key) -> Turn | None:
        """A request of the key; None if it has no limits. Raises ApiError if it has used them
        up.
        """
        if not key.has_limits:
            return None
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = _Account(key, self._num_gateways, self._clock)
        elif account.key != key:
            account.allow(key)
        account.begin()
        return Turn(account)


class _Account:
    def __init__(self, key: Key, num_gateways: int, clock: Callable[[], float]) -> None:
        self._num_gateways = num_gateways
        self.clock = clock
        self.num_running = 0
        self._seconds = 0.0  # that its requests take; 0 before one has ended
        self._num_refused = 0  # since one has ended, as too many were running
        self.allow(key)

    def allow(self, key: Key) -> None:
        """The key as the file has it now; its minute starts again."""
        self.key = key
        self.max_running = self._part(key.max_concurrency)
        self.requests = self._bucket(key.requests_per_minute)
        self.tokens = self._bucket(key.tokens_per_minute)

    def begin(self) -> None:
        if self.max_running is not None and self.num_running >= self.max_running:
            self._num_refused += 1  # each is told to come when those before it are in
            seconds = self._seconds * self._num_refused / self.max_running
            raise self.refusal(f"{self.num_running} requests of at most {self.max_running} are running", seconds)
        if self.tokens is not None and self.tokens.level <= 0:
            message = f"{self.tokens.size} tokens a minute are used up"
            raise self.refusal(message, self.tokens.seconds_until(1))
        if self.requests is not None:
            if self.requests.level < 1:
                message = f"{self.requests.size} requests a minute are used up"
                raise self.refusal(message, self.requests.seconds_until(1))
            self.requests.take(1)
        self.num_running += 1

    def ended(self, since: float) -> None:
        """One that began then has."""
        taken = self.clock() - since
        self._seconds += (taken - self._seconds) * (NEWEST_PART if self._seconds else 1)
        self._num_refused = 0
        self.num_running -= 1

    def _part(self, limit: int | None) -> int | None:
        return None if limit is None else -(-limit // self._num_gateways)

    def _bucket(self, limit: int | None) -> Bucket | None:
        part = self._part(limit)
        return None if part is None else Bucket(part, self.clock)

    def refusal(self, message: str, seconds: float, *, tells_limits: bool = True) -> ApiError:
        """`seconds`: until it may be sent again, as far as is known."""
        told = self.headers() if tells_limits else ()
        headers = {name.decode(): value.decode() for name, value in told}
        text = f"API key {self.key.name!r}: {message}"
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=seconds, headers=headers)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's: how much there is a minute, how much is left, and when all of it is there
        again.
        """
        found = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket is not None:
                left = b"%d" % max(math.floor(bucket.level), 0)
                found += [
                    (b"x-ratelimit-limit-" + name, b"%d" % bucket.size),
                    (b"x-ratelimit-remaining-" + name, left),
                    (b"x-ratelimit-reset-" + name, as_duration(bucket.seconds_until(bucket.size))),
                ]
        return found


def as_duration(seconds: float) -> bytes:
    """As OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    if seconds < 60:
        return b"%gs" % (math.ceil(seconds * 10) / 10)
    minutes, rest = divmod(math.ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest)
