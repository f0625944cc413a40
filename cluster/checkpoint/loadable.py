"""Adapters that may be loaded while the server runs: below folders of its operator's."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cluster.checkpoint.adapters import check_has_adapters, read_adapter, read_adapters
from engine.config import EngineConfig
from engine.errors import InvalidConfig
from engine.request import Adapter
from parallel.spec.decoder import DecoderConfig


@dataclass(frozen=True, slots=True)
class Loadable:
    model: DecoderConfig
    taken: tuple[str, ...]  # names that no adapter may have
    max_rank: int
    roots: tuple[Path, ...]  # without symbolic links

    @classmethod
    def configured(cls, roots: Iterable[str], config: EngineConfig) -> "Loadable | None":
        """None without roots. Raises InvalidConfig."""
        folders = tuple(_root(root) for root in roots)
        if not folders:
            return None
        return cls(check_has_adapters("lora_roots", config), (config.model_name,), config.max_lora_rank, folders)

    def read(self, name: str, path: str) -> Adapter:
        """From a folder that lies below a root once symbolic links are followed, as do its files.
        Raises InvalidConfig.
        """
        if "\0" in path or not Path(path).is_absolute():
            raise InvalidConfig(f"lora_path={path!r} is not an absolute path")
        folder = self._below_a_root(Path(path))
        for file in folder.iterdir() if folder.is_dir() else ():
            if file.is_symlink():
                self._below_a_root(file)
        return read_adapter(name, folder, self.model, self.max_rank)

    def _below_a_root(self, path: Path) -> Path:
        try:
            found = path.resolve()
        except (OSError, RuntimeError):
            raise InvalidConfig(f"lora_path={str(path)!r} cannot be followed") from None
        if not any(found.is_relative_to(root) for root in self.roots):
            allowed = ", ".join(map(str, self.roots))
            raise InvalidConfig(f"lora_path={str(path)!r} is outside the folders of --lora-roots: {allowed}")
        return found


class Lora(NamedTuple):
    """What a configuration says of a model's adapters."""

    given: tuple[Adapter, ...] = ()  # that requests may name from the start
    loadable: Loadable | None = None  # which others may be loaded


NO_LORA = Lora()


def read_lora(modules: Iterable[str], roots: Iterable[str], config: EngineConfig) -> Lora:
    """`modules`: NAME=FOLDER each. Raises InvalidConfig."""
    return Lora(read_adapters(modules, config), Loadable.configured(roots, config))


def _root(folder: str) -> Path:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise InvalidConfig(f"lora_roots: {folder!r} is not a folder")
    return path
