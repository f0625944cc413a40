"""For worker processes of a poisoned run, which have this folder in PYTHONPATH: certain prompts end or break a step.

Python imports a module of this name when it starts. What is replaced is `Worker.execute`, once its module is loaded.
"""

import importlib.machinery
import os
import sys

MODULE = "engine.worker.worker"
EXIT = [7, 11, 7, 11, 7]  # token ids in a row, of one step: three such rows are seen though a prompt is computed in two
RAISE = [13, 17, 13, 17, 13]


def spoil(worker_class):
    execute = worker_class.execute

    def execute_or_fail(self, request):
        ids = request.input_ids.tolist()
        if has(ids, EXIT):
            os._exit(1)
        if has(ids, RAISE):
            raise RuntimeError("a poisoned prompt")
        return execute(self, request)

    worker_class.execute = execute_or_fail


def has(ids, poison):
    return any(ids[at : at + len(poison)] == poison for at, token in enumerate(ids) if token == poison[0])


class Finder:
    """Finds the worker's module as everybody does, and spoils it when it is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_spoil(module):
            load(module)
            spoil(module.Worker)

        spec.loader.exec_module = load_and_spoil
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder)
