"""A column that no row uses costs nothing, and has its plain value for whoever needs it."""

import numpy as np

from engine.sampling_columns import ALWAYS, DTYPES, PLAIN, SamplingColumns


def test_rows_that_ask_for_nothing_have_the_columns_of_the_draw_alone() -> None:
    columns = SamplingColumns.of_plain_rows(3)
    filled = {name for name in SamplingColumns.__dataclass_fields__ if len(getattr(columns, name))}
    assert filled == set(ALWAYS)
    assert filled == {"temperature", "top_k", "top_p", "min_p", "seed", "choice", "position", "logprob_counts"}
    for name in ALWAYS:
        column = getattr(columns, name)
        assert (column.dtype, column.tolist()) == (DTYPES[name], [PLAIN[name]] * 3)


def test_a_column_is_whole_whether_a_row_uses_it_or_not() -> None:
    used = np.array([0.5, 1.0], np.float32)
    columns = SamplingColumns.of_plain_rows(2, repetition_penalty=used)
    assert columns.whole("repetition_penalty") is used
    assert columns.whole("presence_penalty").tolist() == [0.0, 0.0]
    assert columns.whole("presence_penalty").dtype == np.float32
    assert SamplingColumns.of_plain_rows(2).whole("repetition_penalty").tolist() == [1.0, 1.0]
    assert columns.whole("bias_ids").shape == (0,)  # ragged: no row has any
