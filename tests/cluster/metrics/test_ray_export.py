"""Figures that Ray's own agent exports: a real one, whose port is scraped."""

import asyncio
import os
import secrets
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from cluster.metrics import ray_export
from tests.end_to_end.conftest import free_port

# A process that leaves figures with Ray as a gateway does, reads the agent's port until what it
# left last is there, and prints it.
PROGRAM = """
import sys, time, urllib.request
import ray
from cluster.metrics.ray_export import RayExport, has_agent
from cluster.metrics.text import FigureFamilies

port = int(sys.argv[1])
ray.init(address="local", num_cpus=1, include_dashboard=False, _metrics_export_port=port, log_to_driver=False)
assert has_agent()
export = RayExport()
running = {("vllm:num_requests_running", (str(engine),)): 3.0 + engine for engine in range(2)}
running["vllm:lora_requests_info", ("0", "8", "a", "")] = 1.7e9  # which is of a moment
totals = {("squadron:key_tokens", ("ada", "prompt")): 5.0, ("squadron:key_requests", ("ada",)): 1.0}
totals |= {("vllm:generation_tokens", ()): 41.0, ("vllm:request_params_n", ()): [1, 0, 2, 13.0]}
bounds = {"vllm:request_params_n": (1, 2)}
export.write(FigureFamilies(running | totals, bounds, "m").collect())
totals["vllm:generation_tokens", ()] = 42.0
del running["vllm:num_requests_running", ("1",)]
export.write(FigureFamilies(running | totals, bounds, "m").collect())
text = ""
while "ray_vllm_generation_tokens_total" not in text:
    time.sleep(0.1)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    except OSError:
        continue
print(text)
ray.shutdown()
"""


def test_an_agent_of_rays_shows_the_same_numbers() -> None:
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on loopback
        "RAY_metrics_report_interval_ms": "500",
        "RAY_enable_metrics_collection": "1",
    }
    command = [sys.executable, "-c", PROGRAM, str(free_port())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert '"ada"' not in done.stdout, "a key's name"
    samples = {
        (sample.name, sample.labels.get("engine"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
        if sample.labels.get("model_name") == "m"
    }
    assert samples == {
        ("ray_vllm_num_requests_running", "0", None): 3.0,
        ("ray_vllm_num_requests_running", "1", None): 0.0,  # of an engine that is gone
        ("ray_vllm_generation_tokens_total", "all", None): 42.0,
        ("ray_vllm_request_params_n_bucket", "all", "1.0"): 1.0,
        ("ray_vllm_request_params_n_bucket", "all", "2.0"): 1.0,
        ("ray_vllm_request_params_n_bucket", "all", "+Inf"): 3.0,
        ("ray_vllm_request_params_n_count", "all", None): 3.0,
        ("ray_vllm_request_params_n_sum", "all", None): 13.0,
    }, done.stderr


async def test_figures_that_fail_unforeseen_are_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_export, "has_agent", lambda: True)
    monkeypatch.setattr(ray_export, "EXPORT_SECONDS", 0.01)
    asked = asyncio.Queue[None]()

    async def figures() -> Collector:
        asked.put_nowait(None)
        raise RuntimeError("unforeseen")

    exporting = asyncio.create_task(ray_export.export_figures(figures))
    async with asyncio.timeout(120):
        for _ in range(2):
            await asked.get()
    exporting.cancel()
