"""From a configuration to a running application. Files of Serve name `cluster.launch:build_app`."""

from cluster.launch.app import build_app
from cluster.launch.config.app_config import AppConfig

__all__ = ["AppConfig", "build_app"]
