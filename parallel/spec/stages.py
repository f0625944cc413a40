"""The layers of a pipeline stage."""


def stage_layers(num_layers: int, pp_rank: int, pp_size: int, head_layers: float) -> range:
    """The layers of a stage; the last one also has the head, which costs as much as `head_layers`
    layers, and so has fewer of them.
    """
    assert 0 <= pp_rank < pp_size <= num_layers, f"stage {pp_rank} of {pp_size} over {num_layers} layers"
    if pp_size == 1:
        return range(num_layers)
    fair = round((num_layers + head_layers) / pp_size - head_layers)
    last = min(max(fair, 1), num_layers - (pp_size - 1))
    if pp_rank == pp_size - 1:
        return range(num_layers - last, num_layers)
    each, extra = divmod(num_layers - last, pp_size - 1)
    start = pp_rank * each + min(pp_rank, extra)
    return range(start, start + each + (pp_rank < extra))
