"""HAProxy's part in refusing what has no room: see `cluster.full_queue`. Imports Python's own
library alone, see `haproxy`.
"""

from cluster.full_queue import FULL_MS, MAX_FULL_MS, PATHS, REFUSED, WAIT
from cluster.ingress.answer import Answer

_UNTIL, _WAIT = "proc.squadron_full_until", "proc.squadron_wait"  # variables of the process
# As the gateways spread it: once to twice the time, rounded up.
_RETRY_AFTER = f"%[rand(101),add(100),mul({_WAIT}),add(99),div(100)]"
FULL = Answer(
    "503 Service Unavailable",
    "server_overloaded",
    "As many requests wait as the server lets wait (max_num_queued_reqs, max_queue_seconds)",
    _RETRY_AFTER,
)
# What `cluster.api.front.early` leaves to the application is not refused here either. The count of
# refusals is in a table, whose counters are exact whichever thread counts.
_IS_REFUSED = "if METH_POST is_asked !is_let_in is_full { sc0_inc_gpc0 gt 0 }"
RULES = [
    "stick-table type integer size 1 store gpc0",
    f"acl is_asked path {' '.join(PATHS)}",
    "acl is_let_in req.hdr(last-event-id) -m found",
    "acl is_let_in req.hdr(origin) -m found",
    # A clock that is set back makes nothing full for longer.
    f"acl is_full var(txn.squadron_full_ms) -m int 1:{MAX_FULL_MS}",
    "http-request track-sc0 int(1) if is_asked",
    "http-request set-var(txn.squadron_now) date(0,ms) if is_asked",
    f"http-request set-var(txn.squadron_full_ms) var({_UNTIL}),sub(txn.squadron_now) if is_asked",
    f"{FULL.rule(FULL.anthropic_body)} {_IS_REFUSED.replace('is_asked', '{ path /v1/messages }')}",
    f"{FULL.rule()} {_IS_REFUSED}",
    f"http-request del-header {REFUSED}",
    f"http-request set-header {REFUSED} %[sc0_clr_gpc0] if is_asked {{ sc0_get_gpc0 gt 0 }}",
    f"http-response set-var(txn.squadron_full_ms) res.hdr({FULL_MS}),add(0) if {{ res.hdr({FULL_MS}) -m found }}",
    f"http-response set-var({_WAIT}) res.hdr({WAIT}),add(0) if {{ res.hdr({FULL_MS}) -m found }}",
    f"http-response set-var({_UNTIL}) date(0,ms),add(txn.squadron_full_ms) if {{ res.hdr({FULL_MS}) -m found }}",
    f"http-response del-header {FULL_MS}",
    f"http-response del-header {WAIT}",
]
