"""Where the device's time in a step goes: its kernels, as CUPTI saw them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

NUM_SHOWN = 24  # kernels, of those that take longest
LONGEST_NAME = 60


def profiled(run: Callable[[], int]) -> dict[str, Any]:
    """run: computes steps and says how many. Microseconds of each: from its first kernel to the
    next one's, in which any kernel ran, and those of each kernel with how often it was launched.
    Kernels that are launched early, and wait for the one before, count while they wait.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        num_steps = run()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA
    )
    if not spans:
        return {"profiled_steps": num_steps, "kernels": {}}
    busy, reached = 0.0, spans[0][0]
    taken: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for begin, end, name in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
        taken[name[:LONGEST_NAME]] += end - begin
        counts[name[:LONGEST_NAME]] += 1
    return {
        "profiled_steps": num_steps,
        "us_a_step": (reached - spans[0][0]) / num_steps,
        "us_busy": busy / num_steps,
        "launches": len(spans) / num_steps,
        "kernels": {
            name: [round(counts[name] / num_steps, 2), round(microseconds / num_steps, 2)]
            for name, microseconds in taken.most_common(NUM_SHOWN)
        },
    }
