"""The driver's part of the folder of blocks: lists what is there, and bounds it."""

import logging
import threading
import time

from engine.errors import in_a_line
from engine.offload.block_files import Folder, StoredFile
from engine.offload.file_format import block_of
from engine.offload.known import Known

logger = logging.getLogger("squadron.offload")

SECONDS = 30.0  # between two looks, by which blocks of other engines are found
SHARED_SECONDS = 1.0  # of who fills shared memory
STOP_SECONDS = 5.0
PAUSE_PER_LOOK = 20.0  # of a folder of many files, so that the engine has the processor
ABANDONED_SECONDS = 3600.0  # after which a file that is being written never will be


class Upkeep:
    """The bound is on the blocks of all layouts: what was used the longest ago goes first,
    whichever engine wrote it. Other files are neither counted nor removed.
    """

    def __init__(self, folder: Folder, layout: str, most_bytes: int, seconds: float = SECONDS) -> None:
        """`seconds`: between two looks."""
        self.known = Known()
        self._seconds = seconds
        self.layout = layout  # see `layout_name`
        self._folder, self._most_bytes = folder, most_bytes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offload upkeep", daemon=True)

    def of(self, layout: str) -> "Upkeep":
        """This one ends, and one of that layout has started: it knows none of the blocks that this
        one knows.
        """
        self.stop()
        other = Upkeep(self._folder, layout, self._most_bytes, self._seconds)
        other.start()
        return other

    def start(self) -> None:
        """Look once, then now and then in a thread."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Idempotent. A look that a filesystem never ends is left behind."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def look(self) -> None:
        """A failure is logged: the folder is then believed to be as it was."""
        before = set(self.known.contents)
        try:
            files = self._bounded(sorted(self._folder.files(), key=lambda file: file.used))
            found = self._trusted(files)
        except Exception as error:  # each filesystem has its own
            logger.warning("%s cannot be listed: %s", self._folder.uri, in_a_line(error))
            return
        self.known.listed(found, before)

    def _run(self) -> None:
        began = ended = 0.0
        while not self._stopping.wait(max(self._seconds, PAUSE_PER_LOOK * (ended - began))):
            began = time.monotonic()
            self.look()
            ended = time.monotonic()

    def _trusted(self, files: list[StoredFile]) -> set[bytes]:
        """The blocks of this layout in files, by their first rank's; the others are removed, of
        all ranks.
        """
        distrusted = self.known.distrusted()
        found = set()
        for file in files:
            content, rank = block_of(file.name, self.layout) or (b"", None)
            if content in distrusted:
                self._folder.remove(file.name)
            elif rank == 0:
                found.add(content)
        return found

    def _bounded(self, files: list[StoredFile]) -> list[StoredFile]:
        """Those that stay, of files in the order of their last use."""
        num_bytes = sum(file.num_bytes for file in files)
        kept = []
        for file in files:
            is_abandoned = file.is_temporary and time.time() - file.used > ABANDONED_SECONDS
            if is_abandoned or num_bytes > self._most_bytes:
                self._folder.remove(file.name)
                num_bytes -= file.num_bytes
            else:
                kept.append(file)
        return kept
