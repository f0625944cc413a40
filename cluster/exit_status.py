"""How a process ended that is nobody's child here: Ray's own process is its parent, and lets it go without a look."""

import fcntl
import os
import select
import struct
import time

# linux/pidfd.h: `struct pidfd_info` as first published (mask, cgroup, 11 numbers of no interest, exit code), the request
# PIDFD_GET_INFO for it, and the bit of its mask that asks for an exit code, which Linux has since 6.15.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3
_POLL_SECONDS = 0.005


def wait_for_exit_signal(pidfd: int, seconds: float) -> int | None:
    """The number of the signal that a process ended of; 0 if it ended by itself.

    None if it has not ended within `seconds`, or this Linux does not tell.
    """
    deadline = time.monotonic() + seconds
    if not select.select([pidfd], [], [], seconds)[0]:
        return None
    while True:
        try:
            info = fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(_EXIT, *[0] * 13))
        except OSError:
            return None
        mask, *_, status = _INFO.unpack(info)
        if mask & _EXIT:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if time.monotonic() > deadline:  # it is told once the parent has taken note
            return None
        time.sleep(_POLL_SECONDS)
