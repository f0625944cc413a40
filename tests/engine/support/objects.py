"""What there is in this process of our own types."""

import gc
from collections import Counter


def num_objects_of(*packages: str) -> Counter[str]:
    """Objects that the collector knows, by type, of types that these packages define."""
    gc.collect()
    types = [type(each) for each in gc.get_objects()]
    return Counter(each.__qualname__ for each in types if str(each.__module__).partition(".")[0] in packages)
