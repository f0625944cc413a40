"""Which sets of tokens running lanes have (`TokenSet`), and what workers have not been told."""

from dataclasses import dataclass

from engine.scheduling.token_sets.requested import TokenSet


@dataclass(slots=True)
class _Held:
    number: int
    num_lanes: int  # running ones that have it


class HeldSets:
    """Equal sets are one. A set has a number, which rows name, while a running lane has it: workers
    get it with the step after it got its number, and forget it with the step after it lost that.
    """

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """No lane runs, and workers have forgotten their sets."""
        self._held: dict[bytes, _Held] = {}  # by digest
        self._free: list[int] = []  # numbers that sets have had
        self._changes: list[tuple[int, TokenSet | None]] = []

    def hold(self, tokens: TokenSet) -> int:
        """A lane with this set runs from now on. Returns the set's number; 0: it holds nothing."""
        if not tokens.digest:
            return 0
        held = self._held.get(tokens.digest)
        if held is None:
            number = self._free.pop() if self._free else len(self._held) + 1
            held = self._held[tokens.digest] = _Held(number, 0)
            self._changes.append((number, tokens))
        held.num_lanes += 1
        return held.number

    def release(self, tokens: TokenSet) -> None:
        """A lane for which it was held does not run any more."""
        if not tokens.digest:
            return
        held = self._held[tokens.digest]
        held.num_lanes -= 1
        if not held.num_lanes:
            del self._held[tokens.digest]
            self._free.append(held.number)
            self._changes.append((held.number, None))

    def take_changes(self) -> list[tuple[int, TokenSet | None]]:
        """Since the last call, in order: numbers with their new sets, or with none any more."""
        changes, self._changes = self._changes, []
        return changes
