"""Labels and kinds of GPUs that nobody has."""

from cluster.doctor.checks.labels import check_labels
from cluster.workers.nodes import Node
from tests.cluster.doctor.made import need, only

NODES = [Node("a", "10.0.0.1", {"CPU": 8.0, "accelerator_type:A100": 1.0}, {"region": "eu"})]


def test_what_is_there() -> None:
    assert list(check_labels([need(accelerator_type="A100", node_labels={"region": "eu"})], NODES)) == []


def test_what_is_not_is_named_beside_what_is() -> None:
    labels = need(node_labels={"region": "us"})
    assert "there are region=eu" in only(list(check_labels([labels], NODES)), "failure").text
    kind = need(accelerator_type="H100")
    assert "accelerator_type=H100 of demo; there are A100" in only(list(check_labels([kind], NODES)), "failure").text
