"""A gateway's view of the store of batches, and the supervisor that it tells of new ones."""

import hashlib
import logging
import threading
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.actors.named import start_actor
from cluster.api.batches import Batch, Owner
from cluster.batch.files.place import Place
from cluster.batch.store import Store
from cluster.batch.supervisor import Supervisor
from engine.errors import going_on, in_a_line

logger = logging.getLogger("squadron.gateway")

PING_SECONDS = 10.0


class ServedStore(Store):
    """Tells the supervisor."""

    def __init__(self, folder: str, app_name: str) -> None:
        """Raises InvalidConfig."""
        self._place = Place.at(folder)
        super().__init__(self._place)
        self._app_name = app_name
        self._news = threading.Event()
        threading.Thread(target=self._tell, daemon=True, name="batches").start()

    def create(self, owner: Owner, input_file_id: str, endpoint: str, metadata: dict[str, str] | None) -> Batch:
        made = super().create(owner, input_file_id, endpoint, metadata)
        self._news.set()
        return made

    def cancel(self, owner: Owner, batch_id: str) -> Batch:
        cancelled = super().cancel(owner, batch_id)
        self._news.set()
        return cancelled

    def _tell(self) -> None:
        while True:
            with going_on(logger, "having batches run"):
                try:
                    ray.get(_start(self._place, self._app_name).look.remote(), timeout=PING_SECONDS)
                except (RayError, ValueError, TimeoutError) as error:
                    logger.error("batches are not run now: %s", in_a_line(error))
            self._news.wait(PING_SECONDS)
            self._news.clear()


def actor_name(app_name: str, folder: Place) -> str:
    return f"squadron-batches-{app_name}-{hashlib.sha256(folder.path.encode()).hexdigest()[:8]}"


def _start(folder: Place, app_name: str) -> Any:
    """The actor that an application's gateways share, made by the first of them."""
    return start_actor(Supervisor, actor_name(app_name, folder), folder, app_name, max_restarts=-1)
