"""How many engine replicas a model has: by how much of their room its requests want, which replicas
report (`EngineStats.load`).

Serve's controller calls it, which need not have this package: it is sent this module's contents, so
it must import nothing of ours.
"""

import math
from typing import Any

CALM = 0.8  # of the target: fewer engines have to be below it, so that they are not soon too few


class LoadPolicy:
    """Of one deployment."""

    def __init__(self, target_load: float, standby_engines: int) -> None:
        """`target_load`: share of its room that an engine is to use; `standby_engines`: more than
        that needs.
        """
        self._target = target_load
        self._standby = standby_engines

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number wanted, before Serve applies its limits and delays, and no state. `context`:
        an AutoscalingContext of Serve.
        """
        loads = (context.aggregated_metrics or {}).get("load", {})  # by replica
        load = sum(loads.values())
        if load == 0 and not context.total_num_requests:
            return self._standby, {}
        now = context.target_num_replicas - self._standby
        wanted = self._engines(load, self._target)
        if wanted < now:
            wanted = min(self._engines(load, CALM * self._target), now)
        return wanted + self._standby, {}

    def _engines(self, load: float, target: float) -> int:
        return max(1, math.ceil(load / target - 1e-9))
