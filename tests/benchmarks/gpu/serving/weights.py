"""Gives a running server the weights of a folder: `python -m tests.benchmarks.gpu.serving.weights
ADDRESS FOLDER`, with Ray's address and the environment that the server has named. Prints the
answer.
"""

import json
import sys

import ray
from ray import serve

from cluster.launch.app import APP_NAME


def main(address: str, folder: str) -> None:
    ray.init(address, log_to_driver=False, logging_level="warning")
    print(json.dumps(serve.get_app_handle(APP_NAME).update_weights.remote({"path": folder}).result(timeout_s=60)))


if __name__ == "__main__":
    main(*sys.argv[1:])
