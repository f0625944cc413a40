"""What an engine replica that is to end leaves to those that go on with its requests: their blocks,
in a folder in shared memory, which is served to other nodes until nobody reads any more.
"""

import asyncio
import logging
import time
from contextlib import suppress

from cluster.memory import available_memory
from cluster.replica.serve_process import node_address, node_id
from cluster.workers.nodes_memory import bytes_per_block
from engine.config import EngineConfig
from engine.errors import InvalidConfig, in_a_line
from engine.frontend.async_engine import AsyncEngine
from engine.offload.peers.block_server import BlockServer
from engine.offload.shared_folder import SharedFolder

logger = logging.getLogger("squadron.engine")

STORE_SECONDS = 10.0  # for all that there is; what is not stored by then is computed again
READ_SECONDS = 10.0  # that they stay at most
UNREAD_SECONDS = 3.0  # after which nobody reads them any more
LOOK_SECONDS = 0.2
LEAVE_SECONDS = STORE_SECONDS + READ_SECONDS
MOST_SHARE = 4  # of the memory that is available, one part of so many is used at most


class LeftBlocks:
    """Of one engine. Lives in one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._folder: SharedFolder | None = None
        self._server: BlockServer | None = None

    async def store(self) -> str | None:
        """Where the blocks of what runs are from now on, see `BlockFiles`; None: nowhere."""
        observer = self._engine.observer
        if not self._engine.config.kv_leaving_size or observer.is_frozen or observer.problem() is not None:
            return None
        began = time.monotonic()
        try:
            place, most_blocks = self._open(self._engine.config)
            async with asyncio.timeout(STORE_SECONDS):
                await asyncio.wrap_future(self._engine.controls.leave(most_blocks))
        except TimeoutError:
            logger.info("not all blocks of its requests are stored after %g s", STORE_SECONDS)
        except Exception as error:  # whatever it is, the requests must be handed over
            logger.warning("the blocks of its requests are not handed over: %s", in_a_line(error))
            return None
        logger.info("blocks of its requests were stored in %.2f s", time.monotonic() - began)
        return place

    async def wait(self) -> None:
        """Return once nobody has read them for a while."""
        if self._folder is None:
            return
        began = time.time()
        with suppress(OSError):  # somebody has removed it
            while time.time() < min(began + READ_SECONDS, max(began, self._folder.last_read) + UNREAD_SECONDS):
                await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """They are gone. Idempotent."""
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            self._folder.leave()

    def _open(self, config: EngineConfig) -> tuple[str, int]:
        """The place, and how many blocks may go there. Raises InvalidConfig, OSError."""
        path, most_bytes = config.kv_leaving_path, int(config.kv_leaving_size * (1 << 30))
        if path is None:
            return "", most_bytes // bytes_per_block(config)
        if not {node_id()}.issuperset(self._engine.observer.worker_nodes()):
            raise InvalidConfig("ranks on other nodes have parts of them")
        self._folder = SharedFolder.hold(path)
        most_bytes = min(self._folder.most_bytes(most_bytes), available_memory() // MOST_SHARE)
        address = ""
        if config.kv_peer_secret is not None:
            self._server = BlockServer(path, node_address(), config.kv_peer_secret)
            address = self._server.address
        return address + path, most_bytes // bytes_per_block(config)
