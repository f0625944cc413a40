"""The page of `squadron demo` in a browser: by clicks and keys, with real workers behind it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from selenium.webdriver.common.keys import Keys

from tests.documents.snippets import snippet
from tests.end_to_end.conftest import DEMO, LOOPBACK, free_port
from tests.end_to_end.page.browser import Browser, browsing, needs_chromium
from tests.end_to_end.test_command import without_times

pytestmark = needs_chromium
PROMISES = "What are the three promises of Squadron?"
SHOWN = snippet("docs/serving.md", "make demo").output
ANSWER = "#messages li:last-child.assistant"
ENDED = f"{ANSWER}:not(.streaming)"
# Counts the different lengths that the last answer's text has had.
WATCH = """
const seen = window.lengths = new Set();
const look = () => {
  const answers = document.querySelectorAll("#messages .assistant .text");
  if (answers.length) seen.add(answers[answers.length - 1].textContent.length);
};
const what = {subtree: true, childList: true, characterData: true};
new MutationObserver(look).observe(document.querySelector("#messages"), what);
"""
# The contrast of two colours, as WCAG defines it.
CONTRAST = """
const style = getComputedStyle(document.body);
const luminance = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const [ink, ground] = [luminance(style.color), luminance(style.backgroundColor)];
return [ground, (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)];
"""


@dataclass(frozen=True, slots=True)
class Demo:
    url: str
    said: str  # until it waits for Ctrl-C


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    port = free_port()
    command = [sys.executable, "-m", "cluster.cli", "demo", "--port", str(port)]
    process = subprocess.Popen(command, cwd=DEMO.parents[1], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        told = ""
        for line in process.stdout:
            told += line
            if line.startswith("Ctrl-C"):
                break
        assert f"  http://{LOOPBACK}:{port}/\n" in told
        yield Demo(f"http://{LOOPBACK}:{port}", told)
        process.terminate()
        process.wait(120)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def url(demo: Demo) -> str:
    return demo.url


def test_it_says_what_the_documents_show(demo: Demo) -> None:
    shown, said = (without_times(text.partition("\nAsk more")[0]) for text in (SHOWN, demo.said))
    assert said == shown


@pytest.fixture(scope="module")
def chromium(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(f"{url}/", tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """With the page newly opened: nothing of its policy is broken meanwhile, no script fails."""
    chromium.open()
    yield chromium
    assert chromium.complaints() == []


def settings(browser: Browser, **values: str) -> None:
    """Open them, and fill in fields."""
    browser.click("#settings summary")
    for name, value in values.items():
        browser.type(f"#{name}", value)


def ask(browser: Browser, question: str) -> None:
    browser.type("#prompt", question)
    browser.click("#send")


def answer(browser: Browser) -> str:
    """All of it, once it has ended."""
    browser.one(ENDED)
    return browser.text(f"{ANSWER} .text")


def told(url: str, question: str, max_tokens: int, **more: object) -> str:
    """What another client is told, greedily."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        said = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=max_tokens,
            extra_body=more,
        )
    assert said.choices[0].message.content is not None
    return said.choices[0].message.content


def test_a_question_is_answered_as_a_stream(browser: Browser, url: str) -> None:
    expected = told(url, PROMISES, 200)

    def comes_in_pieces() -> bool:
        browser.open()
        settings(browser, temperature="0", max_tokens="200")
        browser.run(WATCH)
        ask(browser, PROMISES)
        assert answer(browser) == expected
        return len(browser.run("return [...window.lengths]")) > 2

    # A browser that is kept from its core for as long as an answer takes finds all of it.
    browser.until(comes_in_pieces, "an answer piece by piece")
    about = browser.text(f"{ANSWER} .about")
    assert re.search(r"first token after .*\d+ tokens, \d+ a second.*prompt 2\d", about)
    names = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(names) > 10 and all(name.startswith(f"{url}/") for name in names), "nothing comes from elsewhere"
    browser.click("#settings summary")
    browser.keep("question")


def test_the_conversation_goes_on_and_a_new_one_begins(browser: Browser) -> None:
    settings(browser, temperature="0", max_tokens="40")
    for number in (1, 2):
        browser.type("#prompt", "What is 17 + 25?")
        browser.press(Keys.ENTER)
        browser.until(lambda number=number: len(browser.all(".assistant:not(.streaming)")) == number, "an answer")
    prompts = [int(re.findall(r"prompt (\d+)", each.text)[0]) for each in browser.all(".about")]
    assert prompts[1] > prompts[0], "the second prompt has the first in it"
    browser.click("#clear")
    assert browser.all("#messages li") == []


@pytest.mark.parametrize("way", ["button", "key"])
def test_a_stopped_answer_stays_as_it_is_and_the_engine_ends_it(browser: Browser, url: str, way: str) -> None:
    settings(browser, max_tokens="1500")
    browser.click("#ignore_eos")
    ask(browser, PROMISES)
    browser.until(lambda: browser.text(f"{ANSWER} .text"), "a token")
    if way == "button":
        browser.click("#stop-button")
    else:
        browser.press(Keys.ESCAPE)
    assert len(answer(browser)) > 0
    assert "stopped" in browser.text(f"{ANSWER} .about")

    def num_running() -> int:
        return sum(each["stats"]["num_requests_running"] for each in view(url))

    browser.until(lambda: num_running() == 0, "an engine without the request")
    assert browser.one("#send").is_enabled() and not browser.one("#stop-button").is_enabled()


def view(url: str) -> list[dict[str, Any]]:
    engines: list[dict[str, Any]] = httpx.get(f"{url}/debug/view", timeout=60).json()["engines"]
    return engines


def test_a_wrong_setting_is_named(browser: Browser) -> None:
    settings(browser, temperature="7")
    ask(browser, PROMISES)
    assert "Temperature" in browser.one("#messages .problem").text


def test_tokens_have_probabilities_and_alternatives(browser: Browser) -> None:
    settings(browser, temperature="0", max_tokens="40")
    browser.click("#logprobs")
    ask(browser, PROMISES)
    text = answer(browser)
    tokens = browser.all(f"{ANSWER} .token")
    assert len(tokens) > 5 and text.startswith("Squadron makes three promises.")
    assert all(re.fullmatch(r"\d+(\.\d)?%", token.get_attribute("title") or "") for token in tokens)
    tokens[1].click()
    rows = [row.text for row in browser.all(f"{ANSWER} .alternatives tr")]
    assert len(rows) in (5, 6) and all(row.endswith("%") for row in rows)
    assert len(browser.all(f"{ANSWER} .alternatives .chosen")) == 1
    browser.keep("probabilities")
    before = browser.text(f"{ANSWER} .alternatives")
    browser.run(f"document.querySelectorAll('{ANSWER} .token')[0].focus()")
    browser.press(Keys.ARROW_RIGHT)
    browser.press(Keys.ARROW_RIGHT)
    browser.press(Keys.ENTER)
    assert browser.all(f"{ANSWER} .token")[2].get_attribute("aria-expanded") == "true"
    assert browser.text(f"{ANSWER} .alternatives") != before


def test_a_tool_is_called_and_its_result_is_used(browser: Browser) -> None:
    settings(browser, temperature="0", max_tokens="100")
    browser.click("#example-tools")
    assert json.loads(browser.run("return document.querySelector('#tools').value"))[0]["function"]["name"] == "add"
    browser.click("#settings summary")
    ask(browser, "What is 57 + 68?")
    browser.one(f"{ENDED} .call form")
    assert re.fullmatch(r'add\(\{"a": ?57, ?"b": ?68\}\)', browser.text(".call code"))
    browser.type(".call input", "125")
    browser.keep("tool")
    browser.click(".call form button")
    browser.until(lambda: len(browser.all(".assistant:not(.streaming)")) == 2, "the answer to the result")
    assert browser.text(f"{ANSWER} .text") == "The sum is 125."


def test_why_a_request_took_its_time(browser: Browser) -> None:
    settings(browser, max_tokens="40")
    browser.click("#settings summary")
    ask(browser, PROMISES)
    answer(browser)
    for button in ("#requests [data-request]", f"{ANSWER} .why"):
        browser.click(button)
        browser.one("#why-table tr.sum")
        phases = [row.text.split()[0] for row in browser.all("#why-table tr")]
        assert {"queue", "prefill", "decode"} <= set(phases) and phases[-1] == "sum"
        browser.keep("why")
        browser.press(Keys.ESCAPE)
        browser.until(lambda: browser.all("dialog[open]") == [], "a closed dialog")


def test_a_killed_worker_changes_no_token(browser: Browser, url: str) -> None:
    question, num_tokens = "Count from 3 to 9.", 700
    undisturbed = told(url, question, num_tokens, ignore_eos=True)
    settings(browser, temperature="0", max_tokens=str(num_tokens))
    browser.click("#ignore_eos")
    browser.click("#settings summary")
    while not is_killed_in_the_middle(browser, url, question):  # the answer had ended before the worker did
        assert answer(browser) == undisturbed
        told(url, question, 1)  # meets the dead worker
        browser.click("#clear")
    assert re.match(r"Killed rank [0-3], process \d+\.", browser.text("#killed"))
    assert answer(browser) == undisturbed
    assert "ended by length" in browser.text(f"{ANSWER} .about")
    browser.click(f"{ANSWER} .why")
    browser.one("#why-table tr.sum")
    assert "recovery" in browser.text("#why-table")
    browser.keep("recovery")
    (engine,) = view(url)
    assert engine["problem"] is None and engine["view"]["recovered"]
    assert str(engine["stats"]["num_recoveries"]) in browser.text("#figures div:last-child dd")


def is_killed_in_the_middle(browser: Browser, url: str, question: str) -> bool:
    """Ask, and have a worker killed once there is a token; whether more of the answer came after
    the recovery.
    """
    button, before, tokens = browser.one("#kill-button"), num_recoveries(url), num_generated(url)
    ask(browser, question)
    browser.until(lambda: num_generated(url) > tokens, "a token")  # the page is late on a busy machine
    button.click()
    browser.until(lambda: num_recoveries(url) > before or browser.all(ENDED), "a recovery, or the end")
    return num_recoveries(url) > before and not browser.all(ENDED)


def num_recoveries(url: str) -> int:
    return sum(each["stats"]["num_recoveries"] for each in view(url))


def num_generated(url: str) -> int:
    return sum(each["stats"]["num_generation_tokens"] for each in view(url))


@pytest.mark.long
def test_many_requests_are_seen_through_a_recovery(browser: Browser, url: str) -> None:
    browser.open(1280, 1120)
    ask(browser, PROMISES)
    answer(browser)
    prompts = [f"Say it again and again, all of you, as long as you can. Number {number}." for number in range(6)]
    phases = "return [...document.querySelectorAll('#requests tbody tr')].map((row) => row.cells[1].textContent)"
    with ThreadPoolExecutor(len(prompts)) as clients:

        def ask_all() -> list[Future[str]]:
            return [clients.submit(told, url, prompt, 1200, ignore_eos=True) for prompt in prompts]

        others = ask_all()
        browser.until(lambda: len(browser.all("#block-maps .table")) >= len(prompts), "all of them")
        before = num_recoveries(url)
        browser.click("#kill-button")
        browser.until(lambda: num_recoveries(url) > before, "a recovery")
        browser.until(lambda: len(browser.all("#block-maps .table")) >= len(prompts), "all of them again")
        browser.keep("page")
        seen = browser.run(phases)
        assert sum(phase in ("prefill", "decode", "recovery") for phase in seen) >= len(prompts), seen
        disturbed = [other.result() for other in others]
        assert disturbed == [other.result() for other in ask_all()]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_telephone(browser: Browser, is_dark: bool) -> None:
    browser.open(390, 844, is_dark=is_dark)
    ground, contrast = browser.run(CONTRAST)
    assert (ground < 0.1) is is_dark and contrast > 7
    settings(browser, temperature="0", max_tokens="40")
    browser.click("#settings summary")
    ask(browser, "What is 17 + 25?")
    assert answer(browser) == "42"
    name = "dark" if is_dark else "light"
    assert_fits(browser)
    browser.keep(f"telephone-chat-{name}")
    assert not browser.all("#engine")[0].is_displayed()
    browser.click("#tab-engine")
    browser.one("#requests [data-request]")
    assert_fits(browser)
    browser.keep(f"telephone-engine-{name}")
    browser.run("document.querySelector('#requests').scrollIntoView()")
    browser.keep(f"telephone-requests-{name}")
    browser.press(Keys.ARROW_LEFT)
    assert browser.one("#chat") and not browser.all("#engine")[0].is_displayed()


def assert_fits(browser: Browser) -> None:
    assert browser.run("return document.scrollingElement.scrollWidth <= document.documentElement.clientWidth")


NUM_VIEWS = "return performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/debug/view')).length"


def test_engines_are_not_asked_while_nobody_looks(browser: Browser) -> None:
    browser.open(390, 844)
    browser.click("#tab-engine")
    browser.until(lambda: browser.run(NUM_VIEWS) >= 2, "a second look")
    browser.click("#tab-chat")
    asked = browser.run(NUM_VIEWS)
    settings(browser, max_tokens="5")
    for number in range(1, 6):
        ask(browser, "What is 17 + 25?")
        browser.until(lambda number=number: len(browser.all(".assistant:not(.streaming)")) == number, "an answer")
    assert browser.run(NUM_VIEWS) <= asked + 1
    browser.click("#tab-engine")
    browser.until(lambda: browser.run(NUM_VIEWS) > asked + 1, "a look again")
