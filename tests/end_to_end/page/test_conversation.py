"""What is in the page's conversation after messages that were refused, stopped or passed over."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from engine.errors import InvalidRequest, Overloaded
from engine.request import ChatPrompt
from tests.cluster.api.scripted import Running, Script, ScriptedService, running
from tests.end_to_end.page.browser import Browser, browsing, needs_chromium

pytestmark = needs_chromium
CALL = ["\n<tool_call>\n", '{"name": "add", ', '"arguments": {"a": ', "57}}", "\n</tool_call>"]
SAID = "Hello, wörld"  # to what has no script
ANSWER = "#messages li:last-child.assistant"
ENDED = f"{ANSWER}:not(.streaming)"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(model={"tool_format": "hermes"}) as server:
        yield server


@pytest.fixture(scope="module")
def chromium(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(f"{server.url}/", tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """With the page newly opened, and a tool."""
    chromium.open()
    chromium.until(lambda: chromium.all("#model option"), "models")
    chromium.click("#settings summary")
    chromium.click("#example-tools")
    chromium.click("#settings summary")
    return chromium


@pytest.fixture
def service(server: Running) -> ScriptedService:
    server.service.scripts.clear()
    server.service.generated.clear()
    return server.service


def ask(browser: Browser, question: str) -> None:
    browser.type("#prompt", question)
    browser.press(Keys.ENTER)


def told(browser: Browser, question: str) -> str:
    """The whole answer."""
    num_before = len(browser.all(".assistant"))
    ask(browser, question)
    browser.until(lambda: len(browser.all(".assistant")) > num_before and browser.all(ENDED), "an answer")
    return browser.text(f"{ANSWER} .text")


def last_asked(service: ScriptedService) -> list[tuple[str, str]]:
    """Role and content of each message of the last conversation."""
    prompt: Any = service.generated[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [(message["role"], message["content"]) for message in prompt.messages]


@pytest.mark.parametrize(
    "error", [InvalidRequest("The prompt has 99 tokens"), Overloaded("full", retry_after=7, limit="all")], ids=str
)
def test_a_refused_message_comes_back_and_is_not_sent_with_the_next(
    browser: Browser, service: ScriptedService, error: Exception
) -> None:
    service.scripts["too long"] = Script(texts=[], error=error)
    assert told(browser, "too long") == ""
    assert str(error) in browser.text(f"{ANSWER} .about .problem")
    assert browser.run("return document.querySelector('#prompt').value") == "too long"
    assert [each.text for each in browser.all("#messages .user.unsent")] == ["too long"]
    assert told(browser, "hello") == SAID
    assert last_asked(service) == [("user", "hello")]
    assert told(browser, "more") == SAID
    assert last_asked(service) == [("user", "hello"), ("assistant", SAID), ("user", "more")]


def test_what_is_written_meanwhile_is_kept(browser: Browser, service: ScriptedService) -> None:
    service.scripts["slow"] = Script(texts=[], waits=True)
    ask(browser, "slow")
    assert service.scripts["slow"].waiting.wait(60)
    browser.type("#prompt", "the next one")
    browser.press(Keys.ESCAPE)
    browser.one(ENDED)
    assert browser.run("return document.querySelector('#prompt').value") == "the next one"
    assert len(browser.all("#messages .user.unsent")) == 1
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.text(f"{ENDED} .text") == SAID, "an answer")
    assert last_asked(service) == [("user", "the next one")]


def test_a_part_of_an_answer_is_kept_and_a_part_of_a_call_is_not(browser: Browser, service: ScriptedService) -> None:
    service.scripts["say"] = Script(texts=["One,"], waits=True)
    service.scripts["call"] = Script(texts=CALL[:3], waits=True)
    for question in ("say", "call"):
        ask(browser, question)
        assert service.scripts[question].waiting.wait(60)
        place = f"{ANSWER} .text" if question == "say" else f"{ANSWER} .call"
        browser.until(lambda place=place: browser.text(place), "a part")
        browser.click("#stop-button")
        browser.one(ENDED)
    assert told(browser, "hello") == SAID
    assert last_asked(service) == [("user", "say"), ("assistant", "One,"), ("user", "hello")]


def test_refused_results_can_be_sent_again(browser: Browser, service: ScriptedService) -> None:
    service.scripts["add"] = Script(texts=CALL)
    service.scripts["57"] = Script(texts=[], error=Overloaded("full", retry_after=7, limit="all"))
    ask(browser, "add")
    browser.type(".call input", "57")
    browser.click(".call form button")
    browser.until(lambda: "full" in browser.text(f"{ENDED} .about .problem"), "a refusal")
    del service.scripts["57"]
    assert browser.run("return document.querySelector('.call input').value") == "57"
    browser.click(".call form button")
    browser.until(lambda: browser.text(f"{ENDED} .text") == SAID, "an answer")
    assert last_asked(service) == [("user", "add"), ("assistant", ""), ("tool", "57")]
    assert browser.all(".call form") == []


def test_a_call_that_is_passed_over_takes_no_result(browser: Browser, service: ScriptedService) -> None:
    """Its result would come after the newer question, by a second stream beside that one's."""
    service.scripts["add"] = Script(texts=CALL)
    service.scripts["wait"] = Script(texts=["Well,"], waits=True)
    ask(browser, "add")
    browser.one(".call form")
    ask(browser, "wait")
    assert service.scripts["wait"].waiting.wait(60)
    assert browser.all(".call form") == []
    browser.until(lambda: browser.text(f"{ANSWER} .text"), "a token")
    browser.click("#stop-button")
    browser.one(ENDED)
    assert not browser.one("#send").get_attribute("disabled")
    assert told(browser, "hello") == SAID
    asked = [("user", "add"), ("assistant", ""), ("user", "wait"), ("assistant", "Well,"), ("user", "hello")]
    assert last_asked(service) == asked


def test_a_call_can_be_answered_when_the_question_that_passed_it_over_is_refused(
    browser: Browser, service: ScriptedService
) -> None:
    service.scripts["add"] = Script(texts=CALL)
    service.scripts["too long"] = Script(texts=[], error=InvalidRequest("The prompt has 99 tokens"))
    ask(browser, "add")
    browser.one(".call form")
    assert told(browser, "too long") == ""
    browser.type(".call input", "57")
    browser.click(".call form button")
    browser.until(lambda: browser.text(f"{ENDED} .text") == SAID, "an answer")
    assert last_asked(service) == [("user", "add"), ("assistant", ""), ("tool", "57")]


def test_numbers_above_those_of_javascript_are_sent_and_shown_as_they_are(
    browser: Browser, service: ScriptedService
) -> None:
    large, call = 2**53 + 1, {"name": "add", "arguments": {"a": 2**63 - 1, "b": 10**30}}
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "minimum": large}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    browser.run(f"document.querySelector('#tools').value = {json.dumps(json.dumps(tools))}")
    service.scripts["call"] = Script(texts=[f"<tool_call>\n{json.dumps(call)}\n</tool_call>"])
    told(browser, "call")
    assert browser.text(f"{ANSWER} .call code") == f"add({json.dumps(call['arguments'])})"
    assert told(browser, "hello") == SAID
    prompt: Any = service.generated[-1].prompt
    assert prompt.tools == tools
    [sent] = [message for message in prompt.messages if message["role"] == "assistant"]
    assert [each["function"] for each in sent["tool_calls"]] == [call]
