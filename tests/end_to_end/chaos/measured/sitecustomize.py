"""For processes of a soak, which have this folder in PYTHONPATH: each tells every few seconds how
much memory it has in use.

Resident memory tells less: what glibc keeps of freed memory rises and falls by megabytes. Python
imports a module of this name when it starts.
"""

import ctypes
import gc
import os
import re
import threading
import time

FOLDER = "SQUADRON_MEMORY_FOLDER"  # where a file of its own, named by its process id, is kept by each process
REST = "rest"  # a file there, as long as nobody asks the processes for anything
SECONDS = 5.0


class _Mallinfo(ctypes.Structure):
    """As in mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def bytes_in_use():
    """Allocated and not freed: by glibc, and by Python's allocator of small objects, which has its
    memory from elsewhere.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    (small,) = re.findall(r"# bytes in allocated blocks\s*= *([\d,]+)", _python_malloc_stats(libc))
    return info.uordblks + info.hblkhd + int(small.replace(",", ""))


def _python_malloc_stats(libc):
    """What `sys._debugmallocstats` prints to the standard error."""
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    ctypes.pythonapi._PyObject_DebugMallocStats(stream)
    libc.fclose(stream)
    told = ctypes.string_at(text, size.value).decode()
    libc.free(text)
    return told


def keep_telling(folder):
    path = os.path.join(folder, str(os.getpid()))
    while os.path.isdir(folder):
        if os.path.exists(os.path.join(folder, REST)):
            gc.collect()  # garbage that waits for the collector is more at one time than at another
        with open(f"{path}.new", "w") as file:
            file.write(str(bytes_in_use()))
        os.replace(f"{path}.new", path)
        time.sleep(SECONDS)


if os.environ.get(FOLDER):
    threading.Thread(target=keep_telling, args=(os.environ[FOLDER],), name="memory", daemon=True).start()
