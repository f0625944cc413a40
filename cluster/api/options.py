"""The options of the HTTP API."""

from dataclasses import dataclass, field, replace

from cluster.api.edge.hosts import ANY, AllowedHosts, default_hosts
from cluster.api.edge.origins import check_origins
from cluster.api.keys.key_ring import KeyRing


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """By default no key is needed."""

    api_keys: KeyRing = field(default_factory=KeyRing)  # without any, none is needed
    allowed_hosts: tuple[str, ...] | None = (ANY,)  # None: those of where it listens, once that is known
    allowed_origins: tuple[str, ...] = ()
    num_gateways: int = 1  # that share the limits of keys
    insecure_no_key: bool = False  # may listen beyond loopback without keys
    open_metrics: bool = False  # any client may read /metrics
    enable_sleep_mode: bool = False  # there are routes by which engines pause and sleep
    strict_fields: bool = False  # unknown fields are rejected; otherwise they are ignored, and the answer says so

    def listening_on(self, host: str) -> "HttpOptions":
        """The same, once it is known where it listens."""
        return self if self.allowed_hosts is not None else replace(self, allowed_hosts=default_hosts(host))


def check_hosts_and_origins(allowed_hosts: tuple[str, ...] | None, allowed_origins: tuple[str, ...]) -> None:
    """Raises InvalidConfig naming the first that cannot be."""
    if allowed_hosts is not None:
        AllowedHosts(allowed_hosts)
    check_origins(allowed_origins)
