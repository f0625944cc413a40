"""What is believed of folders: this node's, and those that engines serve on others."""

import pytest

from engine.offload import known as module
from engine.offload.known import Known

A, B, C = (bytes([number]) * 16 for number in range(3))
HERE, THERE = "10.0.0.1:7000", "10.0.0.2:7000"


def test_what_is_served_elsewhere_is_believed_until_it_is_missed() -> None:
    known = Known()
    known.expect([A, B], THERE)
    known.expect([C], None)
    assert all(map(known.has, (A, B, C))) and known.contents == {C}
    assert [known.address_of(each) for each in (A, B, C)] == [THERE, THERE, ""]
    known.listed(set(), before={C})
    assert known.has(A) and not known.has(C), "this node's folder tells nothing of another's"
    known.forget(A)
    assert not known.has(A) and known.address_of(A) == ""
    known.expect([A], HERE)
    known.add(A)
    assert known.address_of(A) == HERE
    known.distrust(A)
    assert not known.has(A) and known.distrusted() == {A}


def test_nothing_is_believed_of_what_is_distrusted_whoever_tells_it() -> None:
    known = Known()
    assert known.lacks(A)
    known.distrust(A)
    known.add(A, B)
    known.expect([A], THERE)
    known.expect([A], None)
    known.listed({A, C}, before=set())
    assert not known.has(A) and known.contents == {B, C}
    assert not any(map(known.lacks, (A, B))), "nor is it stored"


def test_few_are_distrusted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DISTRUSTED", 2)
    known = Known()
    for content in (A, B, A, C):
        known.distrust(content)
    assert known.distrusted() == {A, C}, "those that were distrusted last"
    monkeypatch.setattr(module, "DISTRUSTED_SECONDS", 0.0)
    assert known.distrusted() == set() and known.lacks(A)


def test_few_of_them_are_remembered_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ELSEWHERE", 2)
    known = Known()
    known.expect([A, B], THERE)
    known.expect([A], HERE)
    known.expect([C], HERE)
    assert [known.address_of(each) for each in (A, B, C)] == [HERE, "", HERE]


def test_all_can_be_forgotten() -> None:
    known = Known()
    known.add(A)
    known.expect([B], THERE)
    known.clear()
    assert not known.has(A) and not known.has(B)
