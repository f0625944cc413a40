"""What a gateway and the HAProxy before it tell each other of a full queue, by headers that clients
neither send nor see.

Of ten times the requests that can be answered nine are refused, and a gateway's refusal takes ten
times the work of HAProxy's. So HAProxy numbers the requests that it lets in, and a gateway whose
queue is nearly full says in each of its answers which number the latest has that came, and how many
more have room. So those that are on their way count, however long a gateway does not get to look at
them. HAProxy refuses the others. Of several gateways' latest numbers the largest counts, so that
one that gets no more requests holds up nobody. What HAProxy has refused it tells with the next
request that it lets through.
"""

import math
from weakref import WeakValueDictionary

LET_IN = "squadron-let-in"  # in a request: which HAProxy let it in (a number of its own), a dot, and its number
LATEST = "squadron-latest"  # in an answer: the number of the latest request that came by way of the same HAProxy
ROOM = "squadron-room"  # beside it: requests after that one that HAProxy may let in
WAIT = "squadron-wait"  # beside it: seconds in which the queue is expected to drain
RESUMES = "squadron-resumes"  # beside it: 1: streams that broke may be resumed; they were let in before
PAGES = "squadron-pages"  # beside it: 1: some web pages may read answers, also that the queue is full
REFUSED = "squadron-refused"  # in a request: how many HAProxy has refused since the last one
# If no answer has come for so long, HAProxy lets in whatever comes: the next refusal tells it more.
TOLD_MS = 2000
ANY_ROOM = 1_000_000_000
MAX_WAIT = 60  # seconds; HAProxy tells clients up to twice as much


# What is refused if nothing has room; a POST each.
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
)
RESUMABLE = PATHS[:4]  # by `Last-Event-ID`


class Latest:
    """The number of the latest request that came by way of one HAProxy."""

    def __init__(self, number: int) -> None:
        self.number = number


class LatestNumbers:
    """What has come by way of each HAProxy. A HAProxy is known while one of its requests waits for
    an answer: there may be any number of them, and each configuration is another process.
    """

    def __init__(self) -> None:
        self._latest: WeakValueDictionary[str, Latest] = WeakValueDictionary()

    def note(self, value: str) -> Latest:
        """Of a request's header LET_IN. To be held until its answer begins; goes on with what comes
        by way of the same HAProxy meanwhile.
        """
        haproxy, _, text = value.partition(".")
        if not (_is_number(haproxy) and _is_number(text)):
            return Latest(0)  # no HAProxy has written it, and none reads the answer
        number = int(text)
        latest = self._latest.setdefault(haproxy, Latest(number))
        if (number - latest.number) % 2**32 < 2**31:  # HAProxy's counters begin anew after 32 bits
            latest.number = number
        return latest


def room_headers(
    room: tuple[float, float, str] | None, latest: int, *, resumes: bool, has_pages: bool
) -> dict[str, str]:
    """Of an answer, from the requests that have room, and the seconds in which the queue is
    expected to drain (`Room`); None: there is more room than anybody needs to know of. `latest`:
    the number of the last request that came by way of this HAProxy. `resumes` and `has_pages`: see
    RESUMES and PAGES.
    """
    num_requests, seconds, _ = room or (math.inf, 1.0, "")
    told = {LATEST: latest, ROOM: max(0, math.ceil(min(num_requests, ANY_ROOM)))}
    told |= {WAIT: min(MAX_WAIT, max(1, round(seconds))), RESUMES: resumes, PAGES: has_pages}
    return {name: str(int(value)) for name, value in told.items()}


def num_refused(value: str) -> int:
    """Of the header REFUSED; 0 for what HAProxy would not write."""
    return int(value) if _is_number(value) else 0


def _is_number(value: str) -> bool:
    """Of 32 bits, about."""
    return value.isascii() and value.isdecimal() and len(value) <= 10
