"""Gives a worker of Ray's its environment, and becomes that worker.

The raylet runs this program in place of Ray's own of the same name, which imports all of Ray for
it: a second of processor time for each of some ten workers, which then import Ray themselves.
(Where there is no environment to give, the raylet leaves the program out, which it knows by name.)
"""

import json
import os
import runpy
import sys
from typing import Any

RAYS = "ray._private.workers.setup_worker"
CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="


def main() -> None:
    options = [argument for argument in sys.argv[1:] if argument.startswith((CONTEXT, LANGUAGE))]
    worker = [argument for argument in sys.argv[1:] if argument not in options]
    contexts = [option.removeprefix(CONTEXT) for option in options if option.startswith(CONTEXT)]
    context = json.loads(contexts[0]) if contexts else {}
    if LANGUAGE + "PYTHON" not in options or not is_plain(context):
        runpy.run_module(RAYS, run_name="__main__")
        return
    os.execve(sys.executable, [sys.executable, *worker], os.environ | context["env_vars"])


def is_plain(context: dict[str, Any]) -> bool:
    """Whether it asks for nothing but this Python and values that are meant as they stand."""
    values = context.get("env_vars")
    others = [value for name, value in context.items() if name not in ("env_vars", "py_executable")]
    if not isinstance(values, dict) or any("$" in each for each in values.values()):
        return False
    return context.get("py_executable") == sys.executable and not any(others)


if __name__ == "__main__":
    main()
