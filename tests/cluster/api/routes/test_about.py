import httpx

from cluster.version import VERSION


def test_the_version_and_the_description_are_open_to_all(http: httpx.Client) -> None:
    told = http.get("/version")
    assert (told.status_code, told.json()) == (200, {"version": VERSION})
    document = http.get("/openapi.json").json()
    assert document["info"]["version"] == VERSION
    assert {"/version", "/v1/chat/completions"} <= document["paths"].keys()


def test_only_the_head_is_sent_to_who_asks_for_it(http: httpx.Client) -> None:
    for path in ("/version", "/openapi.json"):
        whole, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
