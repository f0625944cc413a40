"""A file's state is what is in it."""

import os
from pathlib import Path

from cluster.files.state import state_of


def test_a_change_shows_though_time_size_and_inode_are_as_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    before, told = state_of(path), os.stat(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    now = os.stat(path)
    assert (now.st_mtime_ns, now.st_size, now.st_ino) == (told.st_mtime_ns, told.st_size, told.st_ino)
    assert state_of(path) != before
    path.write_bytes(b"one")
    assert state_of(str(path)) == before
    path.unlink()
    assert state_of(path) is None
