"""Makes them all, of a plain checkpoint of Qwen2 and each in its folder below another:
`python -m tests.parallel.published.own PLAIN FOLDER`, with the packers of `.ci/packers` on
PYTHONPATH.
"""

import sys
from pathlib import Path

import torch

from tests.parallel.published.own import by_autoawq, by_autoround, by_compressed_tensors, by_gptqmodel
from tests.parallel.published.own.made import AUTOAWQ, AUTOROUND, COMPRESSED, GPTQMODEL


def main(plain: str, folder: Path) -> None:
    for name in GPTQMODEL:
        by_gptqmodel.make(plain, name, folder / name)
    for name in AUTOROUND:
        by_autoround.make(plain, name, folder / name)
    with torch.inference_mode():
        for name in COMPRESSED:
            by_compressed_tensors.make(plain, name, folder / name)
        by_autoawq.make(plain, folder / AUTOAWQ)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
