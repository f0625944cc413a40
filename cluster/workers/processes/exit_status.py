"""The exit status of a process that is not our child: its parent is Ray's raylet, which does not
report it.
"""

import fcntl
import os
import select
import struct

# linux/pidfd.h: `struct pidfd_info` as first published (mask, cgroup, 11 numbers of no interest,
# exit code), the request PIDFD_GET_INFO for it, and the bit of its mask that asks for an exit code,
# which Linux has since 6.15.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3


def wait_for_exit_signal(pidfd: int, seconds: float) -> int | None:
    """The number of the signal that ended a process; 0 if it exited by itself. None if it has not
    ended within `seconds`, or this Linux does not report it.
    """
    poll = select.poll()
    poll.register(pidfd, 0)  # for POLLHUP only: the parent has reaped it, and the exit code is available
    try:
        _ask(pidfd)  # an older Linux does not have the request: do not wait
        if not poll.poll(seconds * 1000):
            return None
        mask, status = _ask(pidfd)
    except OSError:
        return None
    if not mask & _EXIT:
        return None
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _ask(pidfd: int) -> tuple[int, int]:
    """The mask of what the kernel answered, and the exit code."""
    mask, *_, status = _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(_EXIT, *[0] * 13)))
    return mask, status
