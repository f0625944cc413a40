"""What a report computes from measured times."""

from collections import Counter

import pytest

from cluster.bench import serve
from cluster.bench.client import Exchange
from cluster.bench.report import Outcome, summarize, table


class TestMetrics:
    EXCHANGES = (
        Exchange(due=0.5, sent=1.0, pieces=[1.1, 1.3, 1.4], num_input=5, num_output=4, finish_reason="length"),
        Exchange(due=1.0, sent=1.0, pieces=[3.0], num_input=7, num_output=1, finish_reason="length"),
        Exchange(due=2.0, sent=2.0, pieces=[2.1, 9.0], error="in the stream: gone"),
    )

    def test_times_and_rates(self) -> None:
        found = serve.outcome(self.EXCHANGES, 4.0, [])
        assert {name: pytest.approx(values) for name, values in found.samples.items()} == {
            "TTFT": [100, 2000],
            "TPOT": [100],
            "ITL": [200, 100],
            "E2EL": [400, 2000],
            "lag": [500, 0, 0],
        }
        assert found.figures == {
            "duration, s": 4,
            "input tokens": 12,
            "output tokens": 5,
            "requests/s": 0.5,
            "output tok/s": 1.25,
            "total tok/s": 4.25,
        }
        assert (found.num_requests, found.failures) == (3, Counter({"in the stream: gone": 1}))

    @pytest.mark.parametrize(
        ("objectives", "good"),
        [
            (["ttft:101"], 1),
            (["ttft:99"], 0),
            (["ttft:2001", "tpot:99"], 1),
            (["ttft:2001", "tpot:101"], 2),
            (["e2el:401"], 1),
        ],
    )
    def test_goodput(self, objectives: list[str], good: int) -> None:
        found = serve.outcome(self.EXCHANGES, 4.0, [serve.objective(text) for text in objectives])
        assert found.figures["goodput, requests/s"] == good / 4

    def test_tokens_that_arrive_together_are_one_arrival(self) -> None:
        together = Exchange(due=0, sent=0, pieces=[1.0, 1.0, 1.0, 1.5, 1.5], num_output=5, finish_reason="length")
        found = serve.outcome([together], 2.0, [])
        assert (found.samples["ITL"], found.samples["TPOT"]) == ([500], [125])

    def test_percentiles(self) -> None:
        assert summarize([float(i) for i in range(101)]) == {"mean": 50, "p50": 50, "p90": 90, "p99": 99}
        assert summarize([]) == {}

    def test_the_table_tells_of_failures(self) -> None:
        failures = Counter({f"error {number}": number for number in range(1, 12)})
        text = table(Outcome(100, {}, {"TTFT": []}, failures))
        assert "34 done, 66 failed" in text
        assert "11 × error 11" in text
        assert "and 3 other errors" in text
