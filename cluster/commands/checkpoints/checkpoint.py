"""`squadron checkpoint verify` and `squadron checkpoint manifest`: compare a checkpoint with its
manifest, and write the manifest.
"""

import argparse
import os
from pathlib import Path

from tqdm import tqdm

from cluster.checkpoint.files import read_tensors
from cluster.checkpoint.manifest import (
    check_small_parts,
    check_weights,
    make_manifest,
    verify_tensors,
    write_manifest,
)
from cluster.checkpoint.spec import read_spec
from cluster.download.models import folder_of
from cluster.progress import progress
from engine.checkpoint.manifest import MANIFEST_FILE, Manifest
from engine.checkpoint.model_config import ModelConfig
from engine.errors import InvalidConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, run, text in (
        ("verify", _verify, f"read all files and compare them with {MANIFEST_FILE}; exit status 2 if they differ"),
        ("manifest", _make, f"write {MANIFEST_FILE}, which every later start verifies the loaded files against"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument(
            "model", metavar="MODEL", help="a folder in Hugging Face layout or a model name, as for squadron serve"
        )
        action.set_defaults(run=run)


def _verify(options: argparse.Namespace) -> None:
    folder = folder_of(options.model)
    _check(folder)
    manifest = Manifest.load(str(folder))
    if manifest is None:
        raise InvalidConfig(
            f"{folder} has no {MANIFEST_FILE} to compare it with; its headers are valid. "
            f"`squadron checkpoint manifest {folder}` makes one from the current files"
        )
    check_small_parts(folder, manifest)
    with _bar(folder) as bar:
        verify_tensors(folder, manifest, _num_threads(), bar.update)
    print(f"{folder}: {len(manifest.tensors)} tensors and {len(manifest.files)} files match {MANIFEST_FILE}")


def _make(options: argparse.Namespace) -> None:
    folder = folder_of(options.model)
    _check(folder)
    if not os.access(folder, os.W_OK):  # before reading the whole checkpoint
        raise InvalidConfig(f"{folder / MANIFEST_FILE} cannot be written: no permission to write to the folder")
    with _bar(folder) as bar:
        manifest = make_manifest(folder, _num_threads(), bar.update)
    path = write_manifest(folder, manifest)
    print(f"{path}: {len(manifest.tensors)} tensors and {len(manifest.files)} files")


def _check(folder: Path) -> None:
    check_weights(str(folder), read_spec(ModelConfig.load(str(folder)), str(folder)))


def _bar(folder: Path) -> "tqdm[None]":
    total = sum(tensor.stop - tensor.start for tensor in read_tensors(folder).values())
    return progress(total=total, unit="B", unit_scale=True, desc=str(folder))


def _num_threads() -> int:
    return len(os.sched_getaffinity(0))
