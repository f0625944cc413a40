import pytest

from cluster.telemetry.otlp_provider import SEND_SECONDS, make_provider
from cluster.version import VERSION
from tests.cluster.telemetry.receiver import receiving


def test_a_process_says_what_it_is_and_operators_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with receiving() as receiver:
        provider = make_provider(receiver.url, "replica-1")
        about = provider.resource.attributes
        assert (about["service.name"], about["service.version"]) == ("squadron", VERSION)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "staging")
        assert make_provider(receiver.url, "replica-2").resource.attributes["service.name"] == "staging"
        with provider.get_tracer("test").start_as_current_span("work"):
            pass
        assert provider.force_flush(10_000)
        (span,) = receiver._spans
    assert (span.name, span.process) == ("work", "replica-1")


def test_the_name_may_be_among_the_attributes_that_operators_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=staging,service.instance.id=all")
    provider = make_provider("http://127.0.0.1:9/v1/traces", "replica-1")
    about = provider.resource.attributes
    assert (about["service.name"], about["service.instance.id"]) == ("staging", "replica-1")
    provider.shutdown()


@pytest.mark.parametrize(("said", "millis"), [(None, SEND_SECONDS * 1000), ("50", 50)])
def test_spans_are_sent_as_often_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, said: str | None, millis: float
) -> None:
    monkeypatch.delenv("OTEL_BSP_SCHEDULE_DELAY", raising=False)
    if said is not None:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", said)
    provider = make_provider("http://127.0.0.1:9/v1/traces", "replica-1")
    (processor,) = provider._active_span_processor._span_processors
    assert processor._batch_processor._schedule_delay_millis == millis
    provider.shutdown()
