"""What is told of a request that has ended."""

import logging
from dataclasses import replace
from pathlib import Path

from cluster.gateway.monitoring.watch import asked
from cluster.telemetry.ended import Ended, as_text
from engine.request import Request
from engine.sampling_params import SamplingParams

REQUEST = Request("r", [1], SamplingParams(max_tokens=5))

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
    phases={"queue": 0.5, "decode": 0.25, "prefill": 0.5, "swap": 1.0},
    scheduler_seconds=0.125,
    execute_seconds=0.75,
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


# Of vLLM's span `llm_request`.
VLLM = {
    *("gen_ai.request.id", "gen_ai.response.model", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"),
    *(
        f"gen_ai.latency.{name}"
        for name in (
            *("time_in_queue", "time_to_first_token", "e2e", "time_in_scheduler", "time_in_model_execute"),
            *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
        )
    ),
}
ASKED = {f"gen_ai.request.{name}" for name in ("n", "max_tokens", "top_p", "temperature")}


def test_a_span_has_all_attributes_of_vllms_but_for_those_that_are_documented_as_missing() -> None:
    told = replace(ENDED, ttft_seconds=0.25).attributes()
    requests = asked(REQUEST, REQUEST)
    assert told.keys() >= VLLM and requests.keys() >= ASKED | {"gen_ai.usage.num_sequences"}
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    missing = "time_in_model_forward"
    assert f"gen_ai.latency.{missing}" not in told and f"`{missing}`\nis missing" in page
    assert told["gen_ai.latency.time_in_model_inference"] == 1.75
    assert told["gen_ai.latency.time_in_scheduler"] == 0.125


def test_a_request_that_was_never_scheduled_has_no_times_in_the_model() -> None:
    told = replace(ENDED, phases={"queue": 2.0}, scheduler_seconds=None, execute_seconds=None).attributes()
    assert {name for name in told if "latency" in name} == {"gen_ai.latency.e2e", "gen_ai.latency.time_in_queue"}
