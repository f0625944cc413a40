"""What the page draws of engines that are made up: pixel by pixel, and of many replicas."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster.gateway.models.all_models import MOST_SEEN
from cluster.gateway.monitoring.view import EngineView
from engine.records.view import STEP_FIELDS, block_map
from tests.cluster.api.scripted import Running, running
from tests.cluster.gateway.monitoring.test_engine_figures import report
from tests.end_to_end.page.browser import Browser, browsing, needs_chromium

pytestmark = needs_chromium
NOW = 100.0  # seconds, of the engines' clocks
LABEL, ROW, GAP, CELL, BLOCK = 56, 20, 4, 7, 10  # CSS pixels, as in steps.js and blocks.js
WINDOW = 10.0  # seconds
# Colours at some points of a canvas; of the stylesheet's names; behind an element.
PIXELS = """
const canvas = document.querySelectorAll("{}")[{}];
const drawing = canvas.getContext("2d");
return {}.map(([x, y]) => [...drawing.getImageData(x, y, 1, 1).data.slice(0, 3)]);
"""
COLOURS = """
const drawing = new OffscreenCanvas(1, 1).getContext("2d", {{willReadFrequently: true}});
return {}.map((name) => {{
  drawing.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${{name}}`).trim();
  drawing.fillRect(0, 0, 1, 1);
  return [...drawing.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}});
"""
SWATCHES = """
return [...document.querySelectorAll("#requests tbody .swatch")]
  .map((each) => getComputedStyle(each).backgroundColor.match(/\\d+/g).map(Number));
"""


def step(number: int, start: float, end: float, prefill_tokens: int, rank_ms: list[float]) -> tuple[Any, ...]:
    decoding = 0 if prefill_tokens else 2
    return (number, 1, start, start, end, end, 2, prefill_tokens, decoding, 0, 0, 0, rank_ms)


def sequence(request_id: str, num_blocks: int) -> dict[str, Any]:
    counts = {"num_prompt_tokens": 20, "num_cached_tokens": 0, "num_output_tokens": 3, "num_blocks": num_blocks}
    return {"request_id": request_id, "choice": 0, "phase": "decode", "seconds": 1.0} | counts


def made(replica: str) -> dict[str, Any]:
    """Two ranks: prefill from 95 to 97 s, of which rank 1 works the second half, and decode from 98
    to 99; a recovery before. Two sequences share block 3; block 6 is kept, 7 and 8 are free.
    """
    tables = np.array([[1, 2, 3, 0], [4, 5, 3, 0]], np.int32)
    steps = [step(1, 95, 97, 18, [2000.0, 1000.0]), step(2, 98, 99, 0, [1000.0, 1000.0])]
    told = {"replica": replica, "pipeline_parallel_size": 1, "block_size": 16, "now": NOW, "step_fields": STEP_FIELDS}
    told |= {"steps": steps, "recovered": [{"start": 92.0, "end": 93.0}], "swapped": [], "waiting": [], "ended": []}
    running = [sequence("chatcmpl-0-0", 3), sequence("chatcmpl-0-1", 3)]
    return told | {"running": running, "blocks": msgspec.to_builtins(block_map(tables, [6], 9))}


class Engines:
    """Some of which fail."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    async def ask_one(self, replica: str, question: str) -> dict[str, Any] | None:
        return None if replica in self.failing else made(replica)


class Scene:
    """The replicas there are."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.engines = Engines()
        self.reports = [report("squadron#EngineDeployment#one", 2)]
        self.chosen: list[str | None] = []
        self._view = EngineView("demo", self.engines, lambda: self.reports)  # type: ignore[arg-type]
        server.service.view = self.view  # type: ignore[method-assign]

    async def view(self, chosen: str | None = None) -> list[dict[str, Any]]:
        self.chosen.append(chosen)
        return await self._view.now([chosen] if chosen else self._view.replicas()[:MOST_SEEN])


@pytest.fixture
def scene() -> Iterator[Scene]:
    with running() as server:
        yield Scene(server)


@pytest.fixture
def browser(scene: Scene, tmp_path: Any) -> Iterator[Browser]:
    with browsing(f"{scene.server.url}/", tmp_path) as browser:
        yield browser
        assert browser.complaints() == []


def pixels(browser: Browser, selector: str, index: int, points: list[list[float]]) -> list[list[int]]:
    """Points in CSS pixels from the upper left."""
    found: list[list[int]] = browser.run(PIXELS.format(selector, index, points))
    return found


def colours(browser: Browser, *names: str) -> dict[str, list[int]]:
    found: list[list[int]] = browser.run(COLOURS.format(list(names)))
    return dict(zip(names, found, strict=True))


def test_steps_are_drawn_when_each_rank_worked_and_at_what(browser: Browser) -> None:
    browser.open()
    browser.one("#timelines canvas")
    width = browser.run("return document.querySelector('#timelines canvas').clientWidth")
    known = colours(browser, "free", "prefill", "decode")

    def drawn(rank: int, seconds: float) -> list[int]:
        x = LABEL + int((seconds - (NOW - WINDOW)) / WINDOW * (width - LABEL))
        (colour,) = pixels(browser, "#timelines canvas", 0, [[x, rank * (ROW + GAP) + ROW // 2]])
        return colour

    times = (94.5, 95.5, 96.5, 97.5, 98.5, 99.5)
    seen = {rank: [drawn(rank, seconds) for seconds in times] for rank in (0, 1)}
    assert seen[0] == [known[kind] for kind in ("free", "prefill", "prefill", "free", "decode", "free")]
    assert seen[1] == [known[kind] for kind in ("free", "free", "prefill", "free", "decode", "free")]
    recovery = [drawn(rank, 92.5) for rank in (0, 1)]
    assert recovery[0] == recovery[1] and recovery[0] not in known.values(), "across all ranks"
    assert browser.text("#timelines .caption") == "last step 2: 2 sequences, 2 decoding, 1000.0 ms"


def test_blocks_are_drawn_in_the_colour_of_what_has_them(browser: Browser) -> None:
    browser.open()
    browser.one("#block-maps .table canvas")
    kinds = colours(browser, "free", "kept", "shared")
    first, second = browser.run(SWATCHES)
    assert first != second
    cells = [[number * CELL + CELL // 2, CELL // 2] for number in range(8)]
    order = [first, first, kinds["shared"], second, second, kinds["kept"], kinds["free"], kinds["free"]]
    assert near(pixels(browser, "#block-maps > canvas", 0, cells), order)
    for place, own in enumerate((first, second)):
        blocks = [[number * BLOCK + BLOCK // 2, BLOCK // 2] for number in range(3)]
        assert near(pixels(browser, "#block-maps .table canvas", place, blocks), [own, own, kinds["shared"]])
    assert browser.text("#block-maps .caption").endswith("5 of 10 blocks in use, of 16 tokens; a cell is a block")
    browser.keep("drawn")


def near(seen: list[list[int]], wanted: list[list[int]]) -> bool:
    """But for the rounding of a colour that is given by its hue."""
    return len(seen) == len(wanted) and bool(np.abs(np.array(seen) - np.array(wanted)).max() <= 1)


def test_of_many_replicas_one_is_chosen(browser: Browser, scene: Scene) -> None:
    names = [f"squadron#EngineDeployment#{place:02}" for place in range(40)]
    scene.reports = [report(name, 2) for name in names]
    browser.open()
    browser.until(lambda: len(browser.all("#timelines canvas")) == MOST_SEEN, "the first ones")
    assert browser.text("#health") == "40 of 40 engines healthy" and len(browser.all("#replicas li")) == 40
    browser.click(f"[data-replica='{names[30]}']")
    browser.until(lambda: len(browser.all("#timelines canvas")) == 1, "the chosen one")
    assert scene.chosen[-1] == names[30]
    pressed = "return [...document.querySelectorAll('[aria-pressed=true]')].map((each) => each.dataset.replica)"
    assert browser.run(pressed) == [names[30]]
    assert browser.run("return document.activeElement.dataset.replica") == names[30], "it keeps the focus"
    scene.reports = scene.reports[:1]
    browser.until(lambda: len(browser.all("#replicas li")) == 1, "the only one that is left")
    asked = len(scene.chosen)
    browser.until(lambda: len(scene.chosen) > asked, "another look")
    assert scene.chosen[-1] is None and not browser.all("[data-replica]")[0].is_displayed()


def test_a_replica_that_does_not_answer_is_said_to_be_old(browser: Browser, scene: Scene) -> None:
    browser.open()
    browser.one("#timelines canvas")
    assert browser.text("#replicas .state") == "healthy"
    scene.engines.failing.add(scene.reports[0].replica)
    browser.until(lambda: "does not answer now" in browser.text("#replicas .state"), "a word of it")
    assert len(browser.all("#timelines canvas")) == 1


def test_engines_that_compute_prompts_are_shown(browser: Browser, scene: Scene) -> None:
    scene.reports.append(replace(report("squadron#PrefillDeployment#two", 2), computes_prompts=True))
    browser.open()
    browser.until(lambda: len(browser.all("#timelines canvas")) == 2, "both")
    assert "2 requests" in browser.text("#figures div:nth-child(2) dd"), "of the one that answers"
    facts = [each.text for each in browser.all("#replicas .facts")]
    assert ["computes prompts" in each for each in facts] == [False, True]
    scene.reports[1] = replace(scene.reports[1], problem="no memory")
    browser.until(lambda: browser.text("#health") == "1 of 2 engines healthy", "its problem")
