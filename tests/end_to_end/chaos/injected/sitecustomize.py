"""For processes that have this folder in PYTHONPATH: certain prompts end or break a worker's step,
or keep an engine busy.

Python imports a module of this name when it starts. What is replaced is `Worker.launch` and
`Tokenizer.encode`, once their modules are loaded.
"""

import ctypes
import importlib.machinery
import os
import sys

HOLD = "hold the interpreter's lock"
HOLD_SECONDS = 12  # in one call of C, as a library may take that keeps the lock
EXIT = [7, 11, 7, 11, 7]  # token ids in a row, of one step: three such rows are seen though a prompt is computed in two
RAISE = [13, 17, 13, 17, 13]


def spoil(worker_class):
    launch = worker_class.launch

    def launch_or_fail(self, request, *late):
        ids = request.input_ids.tolist()
        if has(ids, EXIT):
            os._exit(1)
        if has(ids, RAISE):
            raise RuntimeError("a poisoned prompt")
        return launch(self, request, *late)

    worker_class.launch = launch_or_fail


def has(ids, poison):
    return any(ids[at : at + len(poison)] == poison for at, token in enumerate(ids) if token == poison[0])


def keep_busy(tokenizer_class):
    encode = tokenizer_class.encode

    def hold_and_encode(self, text, *rest, **options):
        if text == HOLD:
            ctypes.PyDLL(None).sleep(HOLD_SECONDS)
        return encode(self, text, *rest, **options)

    tokenizer_class.encode = hold_and_encode


CHANGES = {
    "engine.worker.worker": lambda module: spoil(module.Worker),
    "engine.text.tokenizer": lambda module: keep_busy(module.Tokenizer),
}


class Finder:
    """Finds modules as everybody does, and changes those of CHANGES when they are loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            CHANGES[name](module)

        spec.loader.exec_module = load_and_change
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder)
