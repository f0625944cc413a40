"""A headless Chromium that does what people do: it clicks and types."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no Chromium here: apt-get install chromium chromium-driver"
)
PICTURES = "SQUADRON_PICTURES"  # environment variable: the folder in which pictures are kept
SECONDS = 180  # more than anything here takes
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Browser:
    """With one tab, which is at `url`."""

    def __init__(self, driver: webdriver.Chrome, url: str, pictures: Path) -> None:
        self._driver = driver
        self.url = url
        self._pictures = pictures

    def open(self, width: int = 1280, height: int = 900, *, is_dark: bool = False) -> None:
        """The page anew, on a screen of this size in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._driver.get(self.url)

    def all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The element, once it is there and visible."""
        return self.until(lambda: next((each for each in self.all(selector) if each.is_displayed()), None), selector)

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def type(self, selector: str, text: str) -> None:
        """In place of what is there."""
        self.one(selector).clear()
        self.one(selector).send_keys(text)

    def text(self, selector: str) -> str:
        """As it is in the document, of the last such element."""
        found = self._driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''", selector
        )
        return str(found)

    def press(self, key: str) -> None:
        self._driver.switch_to.active_element.send_keys(key)

    def run(self, script: str) -> Any:
        """What a function of that body returns in the page."""
        return self._driver.execute_script(script)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """What the condition returns, once that is true."""
        return WebDriverWait(self._driver, SECONDS, 0.1).until(lambda _: condition(), f"never: {what}")

    def keep(self, name: str) -> Path:
        """A picture of what is seen now."""
        path = self._pictures / f"{name}.png"
        assert self._driver.save_screenshot(str(path))
        return path

    def complaints(self) -> list[str]:
        """Errors on the console since the last call: breaches of the page's policy, exceptions."""
        return [entry["message"] for entry in self._driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browsing(url: str, folder: Path) -> Iterator[Browser]:
    """`folder`: for the browser's own files, and for pictures unless they are to be kept."""
    pictures = Path(os.environ.get(PICTURES, folder / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    assert CHROMIUM is not None
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver, url, pictures)
    finally:
        driver.quit()
