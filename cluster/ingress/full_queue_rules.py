"""HAProxy's part in refusing what has no room: see `cluster.headers.full_queue`. Imports Python's
own library alone, see `haproxy`.
"""

from cluster.headers.full_queue import LATEST, LET_IN, PAGES, PATHS, REFUSED, RESUMABLE, RESUMES, ROOM, TOLD_MS, WAIT
from cluster.ingress.answer import Answer

# Variables of the process, by the header that tells them.
_TOLD = {name: f"proc.{name.replace('-', '_')}" for name in (ROOM, WAIT, RESUMES, PAGES)}
_ROOM, _WAIT, _TOLD_AT, _MINE = _TOLD[ROOM], _TOLD[WAIT], "proc.squadron_told_at", "proc.squadron_mine"
_LATEST = "proc.squadron_latest"  # the largest number that a gateway has told
_32_BITS, _HIGH_BIT = 2**32 - 1, 2**31  # of the counters
# As the gateways spread it: once to twice the time, rounded up.
_RETRY_AFTER = f"%[rand(101),add(100),mul({_WAIT}),add(99),div(100)]"
FULL = Answer(
    "503 Service Unavailable",
    "server_overloaded",
    "As many requests wait as the server lets wait (max_num_queued_reqs, max_queue_seconds)",
    _RETRY_AFTER,
)
# What `cluster.api.front.early` leaves to the application is not refused here either. The counts of
# refusals (gpc0) and of all that was let in (gpc1) are in a table, whose counters are exact
# whichever thread counts. They begin anew with each process, which has another number.
_IS_REFUSED = "METH_POST is_asked !is_of_stream is_told is_used_up"
_COUNTED = "{ sc0_inc_gpc0 gt 0 }"  # to be asked last
_OF_STREAM = (
    f"{{ path {' '.join(RESUMABLE)} }} {{ req.hdr(last-event-id) -m found }} {{ var({_TOLD[RESUMES]}) -m int 1 }}"
)
# That the queue is full any page may read then: HAProxy does not know their names.
_FOR_PAGES = " hdr access-control-allow-origin * hdr access-control-expose-headers retry-after"
_OF_PAGE = f"{{ req.hdr(origin) -m found }} {{ var({_TOLD[PAGES]}) -m int 1 }}"
_OF_MESSAGES = "{ path /v1/messages }"
# Not what another application says, below a path of its own.
_IS_ANSWER = f"if {{ res.hdr({ROOM}) -m found }} {{ var(txn.squadron_now) -m found }}"
_IS_LATER = f"{{ res.hdr({LATEST}),sub({_LATEST}),and({_HIGH_BIT}) -m int 0 }}"
RULES = [
    "stick-table type integer size 1 store gpc0,gpc1",
    f"acl is_asked path {' '.join(PATHS)}",
    f"http-request set-var(txn.squadron_rest) bool(true) if {_OF_STREAM}",
    "acl is_of_stream var(txn.squadron_rest) -m bool",
    # Not if the clock is set back.
    f"acl is_told var(txn.squadron_told_ms) -m int 0:{TOLD_MS}",
    f"acl is_used_up sc0_get_gpc1,sub({_LATEST}),and({_32_BITS}),sub({_ROOM}) -m int ge 0",
    "http-request track-sc0 int(1) if is_asked",
    "http-request set-var(txn.squadron_now) date(0,ms) if is_asked",
    f"http-request set-var(txn.squadron_told_ms) var(txn.squadron_now),sub({_TOLD_AT}) if is_asked",
    f"{FULL.rule(FULL.anthropic_body, _FOR_PAGES)} if {_IS_REFUSED} {_OF_MESSAGES} {_OF_PAGE} {_COUNTED}",
    f"{FULL.rule(FULL.anthropic_body)} if {_IS_REFUSED} {_OF_MESSAGES} {_COUNTED}",
    f"{FULL.rule(more=_FOR_PAGES)} if {_IS_REFUSED} {_OF_PAGE} {_COUNTED}",
    f"{FULL.rule()} if {_IS_REFUSED} {_COUNTED}",
    f"http-request set-var({_MINE}) rand(2147483647) if is_asked !{{ var({_MINE}) -m found }}",
    f"http-request del-header {LET_IN}",
    f"http-request set-header {LET_IN} %[var({_MINE})].%[sc0_inc_gpc1] if METH_POST is_asked",
    f"http-request del-header {REFUSED}",
    f"http-request set-header {REFUSED} %[sc0_clr_gpc0] if is_asked {{ sc0_get_gpc0 gt 0 }}",
    f"http-response set-var({_LATEST}) res.hdr({LATEST}),add(0) {_IS_ANSWER} !{{ var({_LATEST}) -m found }}",
    f"http-response set-var({_LATEST}) res.hdr({LATEST}),add(0) {_IS_ANSWER} {_IS_LATER}",
    *(f"http-response set-var({variable}) res.hdr({name}),add(0) {_IS_ANSWER}" for name, variable in _TOLD.items()),
    f"http-response set-var({_TOLD_AT}) date(0,ms) {_IS_ANSWER}",
    *(f"http-response del-header {name}" for name in (LATEST, *_TOLD)),
]
