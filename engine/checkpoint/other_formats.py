"""Files of models in formats that are not read, told by their names: what to say of them."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

_ANEW = "have transformers' save_pretrained write safetensors of it"
_PICKLE = f"a pickle, which could run code and is not read; {_ANEW}"
_FORMATS = {
    "adapter_model.safetensors": "an adapter; name the model that it is for, and the folder in --lora-modules",
    **dict.fromkeys(("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"), _PICKLE),
    "*.gguf": "a GGUF file, which is not read; get the checkpoint that it was made of, with *.safetensors",
    **dict.fromkeys(("*.h5", "*.msgpack", "*.onnx"), f"a file of another framework, which is not read; {_ANEW}"),
    "*.safetensors": "not a name that is read; weights in several files need an index of them",
}
_READ = {"model.safetensors", "model.safetensors.index.json"}
_OF_A_TRAINING = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*")  # beside weights, and none


def told_by(names: Iterable[str]) -> str | None:
    """Of the first file that is known, its name and what it is; None if none is, or if there are
    weights that are read: then they are not what is wrong.
    """
    found = sorted(names)
    if not _READ.isdisjoint(found):
        return None
    known = [name for name in found if not any(fnmatchcase(name, pattern) for pattern in _OF_A_TRAINING)]
    for pattern, what in _FORMATS.items():
        if (name := next((name for name in known if fnmatchcase(name, pattern)), None)) is not None:
            return f"{name} is {what}"
    return None
