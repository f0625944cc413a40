"""Which of the trial processes tries a grammar."""

from engine.grammars.trials import NUM_PROCESSES, TrialProcesses


def test_the_last_one_used_is_taken_first_and_long_trials_have_their_own() -> None:
    processes = TrialProcesses()
    try:
        with processes.one(is_first=True) as first, processes.one() as long:
            assert long is not first
        with processes.one(is_first=True) as again, processes.one(is_first=True) as other:
            assert again is first and other not in (first, long)
        long_ones = [processes._long.get_nowait() for _ in range(NUM_PROCESSES)]
        assert processes._long.empty() and long in long_ones and first not in long_ones
    finally:
        processes.close()


def test_a_process_comes_back_after_an_error() -> None:
    processes = TrialProcesses()
    for _ in range(NUM_PROCESSES + 1):
        try:
            with processes.one():
                raise ValueError
        except ValueError:
            pass
    assert processes._long.qsize() == NUM_PROCESSES
    processes.close()
