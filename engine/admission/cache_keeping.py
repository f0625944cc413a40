"""What an engine does with its cache beside computing: the folder of the third tier, and telling
routers what is cached.
"""

from engine.admission.handing_over import HandingOver
from engine.checkpoint.fingerprint import fingerprint
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.executor import Capacity
from engine.kv_events.beginnings import Beginnings, Blocks
from engine.kv_events.changes import Changes
from engine.kv_events.publisher import Publisher, make_publisher
from engine.offload.block_files import Folder, layout_name
from engine.offload.known import Known
from engine.offload.shared_folder import SharedFolder, is_shared, remove_abandoned
from engine.offload.upkeep import SECONDS, SHARED_SECONDS, Upkeep

MIN_HOST_BLOCKS = 4  # half of them may be held by what is being read


class CacheKeeping:
    """`known` and `changes` are for the block managers of all epochs; None if nobody wants them."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._shared: SharedFolder | None = None
        self._upkeep: Upkeep | None = None
        self._publisher: Publisher | None = None
        self.handing_over = HandingOver(holds=config.kv_role == "producer")
        self.known: Known | None = None
        self.changes: Changes | None = None
        self.beginnings = Beginnings()

    def hold(self) -> None:
        """Have the folder stay, if it is in shared memory, before ranks use it. Raises
        InvalidConfig.
        """
        path = self._config.kv_offloading_path
        if path is not None and is_shared(path):
            self._shared = SharedFolder.hold(path)
        elif self._config.kv_leaving_size:
            remove_abandoned()

    def start(self, capacity: Capacity) -> None:
        """Look into the folder, and listen. Raises InvalidConfig."""
        self._upkeep = _open_folder(self._config, capacity, self._shared)
        if self._upkeep is not None:
            self.known = self._upkeep.known
        self._publisher = make_publisher(self._config.kv_events_config)
        if self._publisher is not None:
            self.changes = Changes(self._config.block_size)

    def publish(self, blocks: Blocks) -> None:
        """What has changed since the last call."""
        self.beginnings.settle(blocks)
        if self._publisher is not None and self.changes is not None:
            events = self.changes.take()
            if events:
                self._publisher.publish(events)

    def cleared(self, capacity: Capacity) -> None:
        """The workers' caches are gone. What the folder has is of those weights with which it was
        computed: with others, it has what others have left there.
        """
        if self._upkeep is not None and (layout := _layout(self._config, capacity)) != self._upkeep.layout:
            self._upkeep = self._upkeep.of(layout)
            self.known = self._upkeep.known
        self.beginnings.cleared()
        if self.changes is not None:
            self.changes.cleared()

    def close(self) -> None:
        """Idempotent."""
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._shared is not None:
            self._shared.leave()
        if self._publisher is not None:
            self._publisher.close()


def _open_folder(config: EngineConfig, capacity: Capacity, shared: SharedFolder | None) -> Upkeep | None:
    if config.kv_offloading_path is None:
        return None
    if capacity.num_cpu_blocks < MIN_HOST_BLOCKS:
        raise InvalidConfig(
            f"kv_offloading_path={config.kv_offloading_path} needs host memory that blocks pass through, and there are "
            f"{capacity.num_cpu_blocks} host blocks; raise swap_space"
        )
    layout = _layout(config, capacity)
    folder = Folder(config.kv_offloading_path)
    most_bytes = int(config.kv_offloading_path_size * (1 << 30))
    if shared is not None:
        most_bytes = shared.most_bytes(most_bytes)
    seconds = SHARED_SECONDS if shared is not None and config.kv_role == "producer" else SECONDS
    upkeep = Upkeep(folder, layout, most_bytes, seconds)
    upkeep.start()
    return upkeep


def _layout(config: EngineConfig, capacity: Capacity) -> str:
    return layout_name(fingerprint(capacity.arithmetic), config.tensor_parallel_size, config.pipeline_parallel_size)
