"""What Prometheus reads, read back by its own client library."""

from prometheus_client.parser import text_string_to_metric_families

from cluster.metrics.catalog import CATALOG
from cluster.metrics.text import FigureFamilies, MergedFamilies, render

FIGURES = {
    ("vllm:num_requests_running", ("0",)): 3.0,
    ("vllm:num_requests_running", ("1",)): 4.0,
    ("vllm:request_success", ("stop",)): 5.0,
    ("vllm:request_params_n", ()): [1, 0, 2, 13.0],
    ("squadron:engines", ()): 2.0,
}
BOUNDS = {"vllm:request_params_n": (1, 2)}


def test_every_figure_is_a_sample():
    body = render(FigureFamilies(FIGURES, BOUNDS, 'a "model"'))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    name = ("model_name", 'a "model"')
    whole = ("engine", "all")
    assert samples["vllm:num_requests_running", (("engine", "1"), name)] == 4
    assert samples["vllm:request_success_total", (whole, ("finished_reason", "stop"), name)] == 5
    assert samples["squadron:engines", (name,)] == 2
    buckets = [samples["vllm:request_params_n_bucket", (whole, ("le", le), name)] for le in ("1.0", "2.0", "+Inf")]
    assert buckets == [1, 1, 3]
    assert samples["vllm:request_params_n_count", (whole, name)] == 3
    assert samples["vllm:request_params_n_sum", (whole, name)] == 13


def test_a_histogram_of_another_version_is_left_out():
    body = render(FigureFamilies(FIGURES, {"vllm:request_params_n": (1, 2, 5)}, "m"))
    assert b"vllm:request_params_n_bucket" not in body


def test_names_and_meanings_are_fit_for_prometheus():
    for name, metric in CATALOG.items():
        assert name.startswith(("vllm:", "squadron:")) and metric.help and not metric.help.endswith(".")
        assert not (metric.kind == "counter" and name.endswith("_total"))  # it is added


def test_answers_are_of_the_model_that_was_asked_for_in_whichever_figures_they_are():
    asked = ("squadron:http_requests", ("two", "/health", "GET", "200"))
    figures = [FigureFamilies({asked: count}, {}, model) for model, count in (("one", 3.0), ("two", 4.0))]
    unlike = FigureFamilies({("squadron:http_requests", ("/health", "GET", "200")): 9.0}, {}, "of another version")
    (told,) = text_string_to_metric_families(render(MergedFamilies([*figures, unlike])).decode())
    (sample,) = told.samples
    assert (sample.labels["model_name"], sample.labels["route"], sample.value) == ("two", "/health", 7)
