"""All kinds of inputs, with a canary in between."""

from collections.abc import Callable

import requests
from schemathesis import GenerationMode

from tests.end_to_end.fuzz.drawn import Drawn
from tests.end_to_end.fuzz.extremes import Extremes
from tests.end_to_end.fuzz.judge import CANARY_EVERY, GIVEN_UP_SECONDS, Judge
from tests.end_to_end.fuzz.series import SeriesCheck


class Canary:
    """A request whose answer must not change, whatever is sent beside it."""

    def __init__(self, url: str, judge: Judge, after_each: Callable[[], object]) -> None:
        self._url = url
        self._judge = judge
        self._after_each = after_each
        self._session = requests.Session()
        self._expected = self._ask()
        self._count = 0

    def after_each(self) -> None:
        self._after_each()
        self._count += 1
        if self._count % CANARY_EVERY == 0:
            self.look()

    def look(self) -> None:
        try:
            told = self._ask()
        except requests.RequestException as error:
            told = repr(error)
        if told != self._expected:
            self._judge.fail(f"the canary's answer became {told!r}", f"from {self._expected!r}")

    def _ask(self) -> str:
        body = {"prompt": "What is 2 + 2?", "max_tokens": 8, "temperature": 0, "logprobs": 1}
        answer = self._session.post(f"{self._url}/v1/completions", json=body, timeout=GIVEN_UP_SECONDS)
        answer.raise_for_status()
        return str(answer.json()["choices"])


def run(
    url: str,
    judge: Judge,
    num_inputs: int,
    *,
    number: int = 0,
    scale: float = 1.0,
    with_silence: bool = True,
    after_each: Callable[[], object] = lambda: None,
) -> None:
    """About so many inputs; `number` decides which are drawn, `scale` how large the largest are.
    `after_each` is called after each that is drawn.
    """
    series = SeriesCheck(url, judge)
    canary = Canary(url, judge, after_each)
    drawn = Drawn(url, judge, canary.after_each, number)
    extremes = Extremes(url, judge)
    part = max(num_inputs // 8, 1)
    drawn.by_description(GenerationMode.POSITIVE, 2 * part)
    drawn.by_description(GenerationMode.NEGATIVE, part)
    drawn.by_fields(2 * part)
    drawn.by_bytes(part)
    drawn.by_forms(part)
    drawn.by_tools(part)
    for send in (extremes.upgrades, extremes.oddities, lambda: extremes.large(scale)):
        send()
        canary.look()
    if with_silence:
        extremes.silence()
        canary.look()
    series.look()
