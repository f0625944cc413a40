"""The page in a browser where a key is needed, and before a model that says what it should not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from cluster.api.keys.key_ring import KeyRing
from tests.cluster.api.scripted import Running, Script, running
from tests.end_to_end.page.browser import Browser, browsing, needs_chromium

pytestmark = needs_chromium
KEY = "sk-one"
HOSTILE = [
    '<img src="x" onerror="document.title = 1">',
    "<script>document.title = 1</script>",
    "</div></li><h1>",
    "&lt;b&gt; \u202e![](https://evil.example/x.png) [a](javascript:document.title=1)",
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(api_keys=KeyRing([KEY])) as server:
        yield server


@pytest.fixture
def browser(guarded: Running, tmp_path: Path) -> Iterator[Browser]:
    with browsing(f"{guarded.url}/", tmp_path) as browser:
        browser.open()
        yield browser


def give_key(browser: Browser, key: str) -> None:
    browser.type("#key", key)
    browser.click("#use-key")


def test_a_key_is_asked_for_until_it_is_the_right_one(browser: Browser) -> None:
    browser.one("#key-dialog")
    browser.keep("key")
    give_key(browser, "sk-wrong")
    browser.until(lambda: "does not know" in browser.text("#key-problem"), "a refusal")
    give_key(browser, KEY)
    browser.until(lambda: browser.all("#model option"), "models")
    assert browser.all("dialog[open]") == []
    browser.type("#prompt", "hello")
    browser.press(Keys.ENTER)
    browser.one("#messages .assistant:not(.streaming)")
    assert browser.text("#messages .assistant .text") == "Hello, wörld"
    assert browser.run("return [localStorage.length, document.cookie]") == [0, ""]
    assert KEY not in browser.run("return document.documentElement.outerHTML")
    browser.open()  # in the same tab
    browser.until(lambda: browser.all("#model option"), "models without a question")
    browser.click("#key-button")
    browser.click("#forget-key")
    browser.open()
    browser.one("#key-dialog")
    assert browser.run("return sessionStorage.length") == 0


def test_without_the_key_the_page_says_what_it_lacks_and_asks_no_more(browser: Browser) -> None:
    browser.one("#key-dialog")
    browser.press(Keys.ESCAPE)
    assert "key is needed" in browser.one("#messages .problem").text
    assert "key is needed" in browser.one("#view-problem").text
    browser.type("#prompt", "hello")
    browser.click("#send")  # which needs one again
    give_key(browser, KEY)
    browser.until(lambda: browser.all("#model option"), "models")
    browser.until(lambda: browser.all("#messages .assistant:not(.streaming)"), "an answer")
    assert browser.text("#messages .assistant .text") == "Hello, wörld"


def test_what_a_model_says_is_text(browser: Browser, guarded: Running) -> None:
    guarded.service.scripts["say it"] = Script(texts=HOSTILE)
    browser.one("#key-dialog")
    give_key(browser, KEY)
    browser.until(lambda: browser.all("#model option"), "models")
    for with_tokens in (False, True):
        if with_tokens:
            browser.click("#settings summary")
            browser.click("#logprobs")
        browser.type("#prompt", "say it")
        browser.press(Keys.ENTER)
        browser.until(lambda: browser.all("#messages .assistant:last-child:not(.streaming)"), "an answer")
        assert browser.text("#messages .assistant .text") == "".join(HOSTILE)
        assert browser.all("#messages :is(img, script, h1, a, b)") == []
    assert browser.run("return document.title") == "Squadron"
    assert [line for line in browser.complaints() if "401" not in line] == []


# Answers to questions of where time went wait until they are let go, each by its request's id.
HELD = """
const plain = window.fetch;
window.held = {};
window.fetch = async (path, options) => {
  const answer = await plain(path, options);
  const [, id] = path.split("debug/why/");
  if (id) await new Promise((go) => { window.held[id] = go; });
  return answer;
};
"""


def test_what_was_asked_of_one_request_is_not_shown_of_another(browser: Browser) -> None:
    browser.one("#key-dialog")
    give_key(browser, KEY)
    browser.until(lambda: browser.all("#model option"), "models")
    for number in (1, 2):
        browser.type("#prompt", "hello")
        browser.press(Keys.ENTER)
        browser.until(lambda count=number: len(browser.all("#messages .why")) == count, "an answer")
    browser.run(HELD)
    first, second = browser.all("#messages .why")
    first.click()
    before = browser.one("#why-id").text
    browser.until(lambda: browser.run("return Object.keys(window.held)") == [before], "an answer")
    browser.press(Keys.ESCAPE)
    second.click()
    shown = browser.one("#why-id").text
    browser.run(f"window.held[{before!r}](); return new Promise((done) => setTimeout(done))")
    assert browser.one("#why-id").text == shown != before
