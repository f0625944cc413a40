"""From a configuration to a running application. Files of Serve name `cluster.launch:build_app`."""

from cluster.launch.app import AppConfig, build_app

__all__ = ["AppConfig", "build_app"]
