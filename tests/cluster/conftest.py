"""What tests of ranks on Ray share, and of what its head keeps."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from cluster.head import store
from cluster.launch.node.own_cluster import started
from engine.worker.local_executor import LocalExecutor
from tests.cluster.head.key_values import KeyValues
from tests.cluster.open_ray import open_ray
from tests.cluster.workers.ranks import ROOT, make_config, run


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine, with four logical CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        open_ray(patch)
        folder = tempfile.mkdtemp(prefix="sq-", dir="/tmp")  # short: the paths of sockets are
        try:
            with started(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=80 << 20,
                runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
            ):
                yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one rank in process makes of the prompts."""
    executor = LocalExecutor(make_config())
    executor.start()
    tokens = run(executor)
    executor.shutdown()
    return tokens


@pytest.fixture
def key_values(monkeypatch: pytest.MonkeyPatch) -> KeyValues:
    """In place of Ray's own store."""
    values = KeyValues()
    monkeypatch.setattr(store, "internal_kv", values)
    return values
