"""What is written down of changes of weights."""

from cluster.weights import record
from engine.executor import Weights


def test_the_change_of_the_highest_number_is_the_last(key_values) -> None:
    kept = record.WeightsRecord("squadron", "engines", "run", "/model")
    assert kept.read() == record.NONE
    first, second = kept.claim(1), kept.claim(1)
    assert (first, second) == (1, 2)
    folder = Weights("new", "digest", folder="/new", sample="a")
    assert kept.write(second, folder)
    assert not kept.write(first, None), "which was slower"
    assert kept.read() == record.Change(2, folder, "new")
    assert kept.write(3, Weights("objects", "digest", tensors={}))
    assert kept.read() == record.Change(3, None, "objects", are_elsewhere=True)
    assert record.WeightsRecord("squadron", "engines", "the next run", "/model").read() == record.NONE
    assert record.WeightsRecord("squadron", "engines", "run", "/another").read() == record.NONE
