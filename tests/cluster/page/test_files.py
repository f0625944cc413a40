"""The page's files: whole, and nothing in them that the policy of their answers forbids."""

import re
from html.parser import HTMLParser
from posixpath import dirname, join, normpath

from cluster.page.files import FOLDER, INDEX, read_files

FILES = read_files()
TEXTS = {path: file.body.decode() for path, file in FILES.items()}
SCRIPTS = {path: text for path, text in TEXTS.items() if path.endswith(".js")}
# What makes markup or code of text, or keeps more than a tab should.
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\(|Function\("
    r"|setTimeout\(\s*[\"'`]|localStorage|document\.cookie|indexedDB"
)


class Tags(HTMLParser):
    """All tags with their attributes, and the text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._is_code = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._is_code = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._is_code = False

    def handle_data(self, data: str) -> None:
        self.inline += data if self._is_code else ""


def linked() -> set[str]:
    """Files that the page, its scripts and their imports name, from the page on."""
    tags = Tags(TEXTS[INDEX]).found
    named = {value for _, attributes in tags for name in ("src", "href") if (value := attributes.get(name))}
    found = {each.removeprefix("page/") for each in named if each.startswith("page/")}
    assert {each for each in named if not each.startswith(("page/", "#"))} == set()
    ways = [path for path in found if path.endswith(".js")]
    while ways:
        script = ways.pop()
        for name in re.findall(r'(?:from|^import) "(\.[^"]+)"', TEXTS[script], re.MULTILINE):
            path = normpath(join(dirname(script), name))
            if path not in found:
                found.add(path)
                ways.append(path)
    return found


def test_all_files_are_there_and_used() -> None:
    assert linked() | {INDEX} == FILES.keys()
    assert {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()} == FILES.keys()


def test_a_file_has_its_type_and_a_tag_that_changes_with_it() -> None:
    types = {path.rpartition(".")[2]: file.media_type for path, file in FILES.items()}
    assert types == {
        "html": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
    }
    assert len({file.etag for file in FILES.values()}) == len(FILES)
    assert all(re.fullmatch('"[0-9a-f]{32}"', file.etag) for file in FILES.values())


def test_a_seed_is_sent_as_it_was_given() -> None:
    """JavaScript's numbers are doubles: of a larger one, another would be sent."""
    (seed,) = [attributes for tag, attributes in Tags(TEXTS[INDEX]).found if attributes.get("id") == "seed"]
    most = 2**53 - 1
    assert (seed["type"], seed["min"], seed["max"]) == ("number", str(-most), str(most))
    assert float(most) == most and float(most + 2) != most + 2


def test_the_markup_has_no_code_and_loads_nothing_from_elsewhere() -> None:
    page = Tags(TEXTS[INDEX])
    assert page.inline.strip() == ""
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    for path, text in TEXTS.items():
        urls = re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        assert urls == (["http://www.w3.org"] if path == "icon.svg" else []), path


def test_no_script_makes_markup_or_code_of_text() -> None:
    assert {path: found for path, text in SCRIPTS.items() if (found := DANGEROUS.findall(text))} == {}
    assert DANGEROUS.search("element.innerHTML = text") and DANGEROUS.search("localStorage.key = key")


def test_every_element_that_a_script_asks_for_is_in_the_markup() -> None:
    ids = [attributes["id"] for _, attributes in Tags(TEXTS[INDEX]).found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for path, text in SCRIPTS.items():
        assert set(re.findall(r'\bby\("([\w-]+)"\)', text)) <= set(ids), path


def test_files_are_small() -> None:
    assert {path: len(text.splitlines()) for path, text in TEXTS.items() if len(text.splitlines()) > 200} == {}
    assert sum(len(file.body) for file in FILES.values()) < 100_000
