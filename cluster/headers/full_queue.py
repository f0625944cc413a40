"""What a gateway and the HAProxy before it tell each other of a full queue, by headers that clients
neither send nor see.

Of ten times the requests that can be answered nine are refused, and a gateway's refusal takes ten
times the work of HAProxy's. So a gateway whose queue is nearly full says in each of its answers how
many more requests HAProxy may let in until it is told again; HAProxy refuses the others. What it
has refused it tells with the next request that it lets through.
"""

import math

ROOM = "squadron-room"  # in an answer: requests that HAProxy may let in until the next one
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


def room_headers(room: tuple[float, float, str] | None, *, resumes: bool, has_pages: bool) -> dict[str, str]:
    """Of an answer, from the requests that have room, and the seconds in which the queue is
    expected to drain (`Room`); None: there is more room than anybody needs to know of. `resumes`
    and `has_pages`: see RESUMES and PAGES.

    Half of the room is told: what HAProxy has let in meanwhile has not arrived yet.
    """
    num_requests, seconds, _ = room or (math.inf, 1.0, "")
    num_told = max(0, math.ceil(min(num_requests, 2 * ANY_ROOM) / 2))
    told = {ROOM: num_told, WAIT: min(MAX_WAIT, max(1, round(seconds))), RESUMES: resumes, PAGES: has_pages}
    return {name: str(int(value)) for name, value in told.items()}


def num_refused(value: str) -> int:
    """Of the header REFUSED; 0 for what HAProxy would not write."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
