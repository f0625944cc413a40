"""What the benchmark prints: a line for each thing as it is measured, and at the end a table."""

from typing import Any

TOKENS_PER_SECOND = "output_tok_per_s"


def line(figures: dict[str, Any]) -> str:
    if "failed" in figures:
        whose = " ".join(figures[name] for name in ("backend", "size", "case") if name in figures)
        return f"FAILED{' ' + whose if whose else ''}: {figures['failed']}"
    if "case" not in figures:
        return ", ".join(
            f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
        )
    name = f"{figures['backend']:<12} {figures['size']:<6} {figures['case']:<38}"
    share = 100 * figures["of_floor"]
    return f"{name} {figures['microseconds']:>10.1f} us, {share:>5.1f} % of floor, off {figures['error']:.1e}"


def table(report: dict[str, Any]) -> str:
    """All of it in less than a page: shares of the floor by kernel, then the device, the engine,
    and what failed.
    """
    figures = {name: part["figures"] for name, part in report["parts"].items()}
    kernels = [each for part in figures.values() for each in part if "of_floor" in each and "case" in each]
    backends = list(dict.fromkeys(each["backend"] for each in kernels))
    lines = [
        f"{report['environment']['device']}, torch {report['environment']['torch']}, {report['environment']['date']}"
    ]
    shares: dict[tuple[str, str], dict[str, float]] = {}
    for each in kernels:
        shares.setdefault((each["size"], each["case"]), {})[each["backend"]] = each["of_floor"]
    lines.append(f"{'% of floor':<48}" + "".join(f"{backend:>14}" for backend in backends))
    for (size, case), by_backend in shares.items():
        row = "".join(f"{100 * by_backend[name]:>14.1f}" if name in by_backend else f"{'-':>14}" for name in backends)
        lines.append(f"{size:<6} {case:<41}{row}")
    lines += [f"{name}: {line(each)}" for name, part in figures.items() for each in part if each not in kernels]
    lines += _of_exactness(figures)
    lines += _of_peers(figures)
    for device in figures.get("device before", []):
        for name, part in figures.items():
            for each in part:
                if "copy" in device and "weight_bytes" in each:
                    floor = 1e3 * each["weight_bytes"] / device["copy"]
                    lines.append(
                        f"{name}, batch {each['batch']}: {each['ms_a_step'] / floor:.2f} times the weights' time"
                    )
    lines += [f"FAILED {name}: {reason}" for name, reason in report["failed"].items()]
    return "\n".join(lines)


def _of_exactness(figures: dict[str, Any]) -> list[str]:
    """What exact engines lose to fast ones of the same shape, measure by measure."""
    lines = []
    for name, part in figures.items():
        fast = figures.get(name.replace(" exact", " fast"), [])
        for each, other in zip(part, fast, strict=False) if name.endswith(" exact") else ():
            if "ms_a_step" in each and "ms_a_step" in other:
                lost = 1 - other["ms_a_step"] / each["ms_a_step"]
                lines.append(f"exact costs {100 * lost:.1f} % of the time of a step, batch {each['batch']}")
            if TOKENS_PER_SECOND in each and TOKENS_PER_SECOND in other:
                lost = 1 - each[TOKENS_PER_SECOND] / other[TOKENS_PER_SECOND]
                lines.append(f"exact costs {100 * lost:.1f} % of the tokens a second")
    return lines


def _of_peers(figures: dict[str, Any]) -> list[str]:
    """How many times as fast engines are as peers, where both had the same load."""
    lines = []
    loads = ("shape", "batch", "context", "requests", "longest")
    everything = [each for part in figures.values() for each in part]
    for peer in (each for each in everything if "peer" in each):
        whose = f"{peer['peer']} ({peer.get('cache') or peer.get('way')}, {peer.get('attention')})"
        for ours in (each for each in everything if "exact" in each):
            if any(ours.get(name) != peer.get(name) for name in loads):
                continue
            name = f"engine {ours['shape']} {'exact' if ours['exact'] else 'fast'}"
            if "ms_a_step" in ours and "ms_a_step" in peer:
                times = peer["ms_a_step"] / ours["ms_a_step"]
                lines.append(f"{name}, batch {ours['batch']}: a step is {times:.2f} times as fast as of {whose}")
            if TOKENS_PER_SECOND in ours and TOKENS_PER_SECOND in peer:
                times = ours[TOKENS_PER_SECOND] / peer[TOKENS_PER_SECOND]
                lines.append(f"{name}, {ours['requests']} requests: {times:.2f} times the tokens a second of {whose}")
    return lines
