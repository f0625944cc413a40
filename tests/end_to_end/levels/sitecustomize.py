"""For processes that have this folder in PYTHONPATH: engine replicas take the CPU level that the
next line of a file names, or the best one.

Python imports a module of this name when it starts.
"""

import fcntl
import importlib.machinery
import os
import sys

FILE = "SQUADRON_TEST_LEVELS"  # the environment variable that names the file
BEST = "best"
MODULE = "cluster.replica.deployment"


def next_level():
    with open(os.environ[FILE], "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first, *rest = file.read().splitlines()
        file.seek(0)
        file.truncate()
        file.write("".join(f"{line}\n" for line in rest))
    return first


def limit(deployment_class):
    start = deployment_class.__init__

    async def take_level_and_start(self, *args):
        level = next_level()
        if level != BEST:
            os.environ["SQUADRON_CPU_ISA"] = level
        await start(self, *args)

    deployment_class.__init__ = take_level_and_start


class Finder:
    """Finds modules as everybody does, and changes MODULE when it is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            limit(module.EngineDeployment)

        spec.loader.exec_module = load_and_change
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder)
