"""By which clients know a batch's answers."""

from cluster.batch.files.index import Index, lines_of
from cluster.batch.files.lines import MAX_LINE_BYTES, custom_id_of
from cluster.batch.files.place import Place
from engine.errors import InvalidRequest


def refuse_twins(source: Place, index: Index) -> None:
    """Reads all of the input but lines that are too long; raises InvalidRequest for two lines with
    one id, whose answers could not be told apart.
    """
    first: dict[str, int] = {}
    for chunk in index.chunks:
        if chunk.length > MAX_LINE_BYTES:
            continue
        for number, line in enumerate(lines_of(source.part(chunk.offset, chunk.length)), chunk.first + 1):
            custom_id = custom_id_of(line)
            if custom_id is not None and first.setdefault(custom_id, number) != number:
                message = f"requests {first[custom_id]} and {number} have one custom_id, {custom_id[:64]!r}"
                raise InvalidRequest(message, param="custom_id", code="duplicate_custom_id")
