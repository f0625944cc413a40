"""What a compiled kernel's instructions tell of its speed, without a device to run it on."""

import re
from collections import Counter
from dataclasses import dataclass

WARPS = {80: 64, 89: 48, 90: 64, 100: 64, 120: 48}  # a processor has at most
SHARED = {80: 164 << 10, 89: 100 << 10, 90: 228 << 10, 100: 228 << 10, 120: 100 << 10}  # bytes a processor has
REGISTERS = 65536  # a processor has
RESERVED = 1 << 10  # bytes of shared memory that the driver takes of each program
BRANCH = re.compile(r"\bBRA(?:\.\w+)*(?: !?\w+,)? `\((\.L_x_\d+)\)")
# What no program may do before it has waited for the kernel before: read, write, end.
ACTS = re.compile(r"\b(?:LD|LDG|LDGSTS|UBLKCP|UTMALDG|UTMASTG|ST|STG|ATOM|ATOMG|RED|REDG|EXIT)\b")
LEAVES = re.compile(r"\b(?:BRA|BRX|BRXU|JMP|JMX|CALL|RET)\b")
TRAP = re.compile(r"\bCALL\.REL\.NOINC `\(\$__internal_\d+_\$__cuda_sm10x_tcgen05_guardrail_trap_\w+\)")
TENSOR = re.compile(r"\b((?:HGMMA|QGMMA|IGMMA|HMMA|QMMA|IMMA|DMMA|UTC[A-Z]*MMA)[.\w]*)")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Of one kernel. A loop is one that has no other within."""

    asynchronous: dict[int, int]  # reads of device memory that go past the registers, by their bits
    boxes: int  # copies of whole tiles of device memory
    products: frozenset[str]  # instructions of the tensor cores, with their widths
    barriers: int  # of a loop that multiplies and reads ahead, at most; 0 where there is none
    waits: bool  # for the kernel before (programmatic dependent launch), before it does anything
    waits_to_write: bool  # for that one, before it does anything but read
    spills: int  # instructions that read or write a thread's own memory


def machine_code(text: str) -> MachineCode:
    """text: as `nvdisasm -c` prints it."""
    lines = text.splitlines()
    ahead = [part for part in (lines[first : last + 1] for first, last in _loops(lines)) if _reads_ahead(part)]
    return MachineCode(
        asynchronous=dict(Counter(_bits(name) for name in re.findall(r"\bLDGSTS([.\w]*)", text))),
        boxes=len(re.findall(r"\bUTMALDG\b", text)),
        products=frozenset(TENSOR.findall(text)),
        barriers=max((sum("BAR.SYNC" in line for line in part) for part in ahead), default=0),
        waits=_waits(text),
        waits_to_write=_waits(re.sub(r"\bLDG\b", "", text)),
        spills=len(re.findall(r"\b(?:LDL|STL)\b", text)),
    )


def resident(arch: int, *, registers: int, threads: int, shared: int) -> int:
    """Programs that a processor runs at once; registers of a thread, bytes of a program."""
    warps = threads // 32
    of_a_warp = -(-registers * 32 // 256) * 256
    return min(WARPS[arch] // warps, REGISTERS // (of_a_warp * warps), SHARED[arch] // (shared + RESERVED))


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of each loop."""
    labels = {line.split(":")[0].strip(): index for index, line in enumerate(lines) if line.startswith(".L_x_")}
    back = [
        (labels[match[1]], index)
        for index, line in enumerate(lines)
        if (match := BRANCH.search(line)) and labels.get(match[1], index) < index
    ]
    return [loop for loop in back if not any(loop != other and _is_within(other, loop) for other in back)]


def _is_within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _waits(text: str) -> bool:
    """Whether it begins with ACQBULK, PTX's griddepcontrol.wait: before any other act, and with no
    branch past it. On sm_100, programs reserve tensor memory before.
    """
    before, found, _ = text.partition("ACQBULK")
    labels = set(re.findall(r"^(\.L_x_\d+):", before, re.MULTILINE))
    leaving = [line for line in before.splitlines() if LEAVES.search(line) and not _stays(line, labels)]
    return bool(found) and not ACTS.search(before) and not leaving


def _stays(line: str, labels: set[str]) -> bool:
    """Whether what leads elsewhere leads to one of the labels, or ends in a trap."""
    branch = BRANCH.search(line)
    return branch[1] in labels if branch else TRAP.search(line) is not None


def _reads_ahead(lines: list[str]) -> bool:
    return any("LDGSTS" in line or "UTMALDG" in line for line in lines) and any(TENSOR.search(line) for line in lines)


def _bits(suffix: str) -> int:
    """Of a read, by what follows its name."""
    widths = [int(part) for part in suffix.split(".") if part.isdigit()]
    return widths[0] if widths else 32
