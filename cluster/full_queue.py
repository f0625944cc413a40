"""What a gateway and the HAProxy before it tell each other of a full queue, by headers that clients
neither send nor see.

Of ten times the requests that can be answered nine are refused, and a gateway's refusal takes ten
times the work of HAProxy's. So a gateway that refuses a request because nothing has room says for
how long HAProxy may refuse others itself, without asking; what it has refused it tells with the
next request that it lets through.
"""

FULL_MS = "squadron-full-ms"  # in a refusal: so many milliseconds HAProxy refuses
WAIT = "squadron-wait"  # beside it: seconds in which the queue is expected to drain
REFUSED = "squadron-refused"  # in a request: how many HAProxy has refused since the last one
MIN_FULL_MS, MAX_FULL_MS = 50, 500
QUEUES_PER_FULL = 20  # a full queue loses at most this part of itself before a request may enter again
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
)


def full_headers(seconds: float) -> dict[str, str]:
    """Of a refusal, if the queue drains in so many seconds."""
    milliseconds = min(MAX_FULL_MS, max(MIN_FULL_MS, int(seconds * 1000 / QUEUES_PER_FULL)))
    return {FULL_MS: str(milliseconds), WAIT: str(min(MAX_WAIT, max(1, round(seconds))))}


def num_refused(value: str) -> int:
    """Of the header REFUSED; 0 for what HAProxy would not write."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
