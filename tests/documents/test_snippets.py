"""Every fenced command and snippet of the documents is run by a test, or listed with the reason."""

from tests.documents.not_run import NOT_RUN
from tests.documents.snippets import LANGUAGES, Snippet, all_snippets, snippet, snippets, taken

PAGE = """
```bash
first --option \\
    --other     # a remark
# a comment
second | third
```

```console
$ shown
an answer

of two parts
$ next
```

- in a list

  ```json
  {"a": 1}
  ```
"""


def test_blocks_are_cut_into_snippets() -> None:
    assert list(snippets(PAGE, "page.md")) == [
        Snippet("page.md", 2, "bash", "first --option \\\n    --other     # a remark"),
        Snippet("page.md", 2, "bash", "second | third"),
        Snippet("page.md", 9, "console", "shown", "an answer\n\nof two parts"),
        Snippet("page.md", 9, "console", "next"),
        Snippet("page.md", 19, "json", '  {"a": 1}'),
    ]


def test_every_block_says_its_language() -> None:
    assert [str(each) for each in all_snippets() if each.language not in LANGUAGES] == []


def test_every_snippet_is_run_or_listed() -> None:
    named = taken() | NOT_RUN.keys()
    left = [each for each in all_snippets() if not any(page == each.page and part in each.text for page, part in named)]
    assert [str(each) for each in left] == [], "run them in a test, or list them in tests/documents/not_run.py"


def test_the_list_names_what_is_there_and_what_no_test_runs() -> None:
    listed = {snippet(*name) for name in NOT_RUN}  # fails for what is gone
    assert len(listed) == len(NOT_RUN) and all(NOT_RUN.values())
    run = taken()
    assert [str(each) for each in listed if any(page == each.page and part in each.text for page, part in run)] == []
