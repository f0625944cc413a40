"""The server that listens, and Serve's configuration for it."""

from dataclasses import dataclass
from typing import Literal

from cluster.api.proxy import CONTROLLER_OPTIONS


@dataclass(frozen=True, slots=True)
class Ingress:
    """What listens on host:port, and why."""

    name: Literal["haproxy", "proxy"]
    why: str  # it is not HAProxy; "" if it is, or if that was not wanted
    serve_host: str  # what Serve is told to listen on
    environment: dict[str, str]  # of Serve's controller, which its proxies and replicas inherit

    @property
    def report(self) -> str:
        """For the console."""
        if self.name == "haproxy":
            return "Ingress: HAProxy"
        return f"Ingress: Serve's own proxy{self.why and f', not HAProxy: {self.why}'}"

    @property
    def controller_options(self) -> dict[str, dict[str, dict[str, str]]]:
        """For `serve.start`."""
        env_vars = CONTROLLER_OPTIONS["runtime_env"]["env_vars"] | self.environment
        return {"runtime_env": {"env_vars": env_vars}}
