"""Compiles ops/cpu at install: the level of this machine for an editable install, every level for a
wheel.

Without a compiler the installation goes through, and the kernels are missing: Squadron then says so
and computes in torch. All else is in pyproject.toml.
"""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

spec = importlib.util.spec_from_file_location(
    "build", Path("ops") / "cpu" / "build.py"
)  # not by import: ops needs torch
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


DEMO = Path("configs") / "demo"
DEMO_FILES = ("*.json", "*.jinja", "*.safetensors")


class BuildPackages(build_py):
    """A wheel holds the demo's checkpoint, which is beside the packages in the repository, in one
    of them.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "cluster" / "models" / "demo"
            target.mkdir(parents=True, exist_ok=True)
            for path in (path for pattern in DEMO_FILES for path in DEMO.glob(pattern)):
                self.copy_file(str(path), str(target / path.name))


class BuildKernels(build_ext):
    """Each extension is a level, ops.cpu.<level>; its file is that level's library."""

    def run(self) -> None:
        if self.inplace:
            best = build.runnable_levels()[0]
            self.extensions = [extension for extension in self.extensions if level_of(extension) == best]
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        *package, level = fullname.split(".")
        return str(Path(*package, build.library_name(level)))

    def build_extension(self, ext: Extension) -> None:
        try:
            build.build(level_of(ext), Path(self.get_ext_fullpath(ext.name)))
        except build.BuildError as error:
            raise CompileError(str(error)) from None


def level_of(extension: Extension) -> str:
    return extension.name.rpartition(".")[2]


setup(
    package_data={
        "ops.cpu": ["src/*"],  # a wheel that meets another processor compiles again
        "cluster.page": ["static/*", "static/*/*"],
    },
    ext_modules=[Extension(f"ops.cpu.{level}", [], optional=True) for level in build.compilable_levels()],
    cmdclass={"build_ext": BuildKernels, "build_py": BuildPackages},
)
