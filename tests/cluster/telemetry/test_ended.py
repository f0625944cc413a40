"""What is told of a request that has ended."""

import logging

from cluster.telemetry.ended import Ended, as_text

ENDED = Ended(
    id="chatcmpl-1",
    model="demo",
    status=200,
    code=None,
    finish_reasons=("stop", "length"),
    num_prompt_tokens=5,
    num_output_tokens=7,
    num_cached_tokens=0,
    num_attempts=1,
    e2e_seconds=1.23456,
    ttft_seconds=None,
    phases={"queue": 0.5, "decode": 0.25},
)


def test_a_line_has_what_is_known() -> None:
    assert as_text(ENDED.fields()) == (
        "id=chatcmpl-1 model=demo status=200 finish_reasons=stop,length prompt_tokens=5 output_tokens=7 "
        "cached_tokens=0 attempts=1 queue_seconds=0.5 e2e_seconds=1.2346"
    )
    logging.getLogger("squadron.tests").makeRecord("", 20, "", 0, "", (), None, extra=ENDED.fields())


def test_a_value_stays_on_its_line_and_in_its_place() -> None:
    shown = as_text({"id": 'a\nINFO status=200 "b"\u2028', "empty": ""})
    assert shown == 'id="a\\nINFO status=200 \\"b\\"\\u2028" empty=""'


def test_a_span_has_the_names_of_both_conventions() -> None:
    attributes = ENDED.attributes()
    assert attributes["gen_ai.usage.output_tokens"] == attributes["gen_ai.usage.completion_tokens"] == 7
    assert attributes["gen_ai.latency.time_in_queue"] == 0.5
    assert attributes["gen_ai.response.finish_reasons"] == ("stop", "length")
    assert "gen_ai.latency.time_to_first_token" not in attributes
