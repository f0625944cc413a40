"""Sums never fall, whoever dies, and whoever is asked."""

import random

import pytest

from cluster.metrics.ledger import KEPT_SECONDS, NUM_FIGURES_KEPT, NUM_NAMES_KEPT, Ledger, Silences

STEPS = ("steps", ())


def test_of_two_figures_of_a_process_the_later_ones_count():
    ledger, now = Ledger(), 1000.0
    ledger.note("engine", now, {STEPS: 5.0})
    ledger.note("engine", now - 1, {STEPS: 4.0})
    ledger.note("engine", now, {STEPS: 6.0})
    assert ledger.total() == {STEPS: 5.0}


def test_what_a_dead_process_counted_stays_and_others_learn_of_it():
    one, two, now = Ledger(), Ledger(), 1000.0
    one.note("dead", now, {STEPS: 5.0})
    two.note("alive", now, {STEPS: 7.0})
    two.learn(one)
    one.learn(two)
    assert one.total() == two.total() == {STEPS: 12.0}


def test_processes_gone_for_good_are_added_up_once_wherever_that_is_done():
    one, two, now = Ledger(), Ledger(), 1000.0
    of_one, of_two = Silences(), Silences()
    one.note("gone", now, {STEPS: 5.0})
    of_one.tidy(one, now)
    two.learn(one)
    of_two.tidy(two, now)
    now += KEPT_SECONDS + 1
    one.note("alive", now, {STEPS: 7.0})
    of_one.tidy(one, now)
    assert one.entries.keys() == {"alive"} and one.total() == {STEPS: 12.0}
    two.learn(one)
    one.learn(two)
    of_two.tidy(two, now)
    for ledger in (one, two):
        assert ledger.entries.keys() == {"alive"} and ledger.total() == {STEPS: 12.0}
    two.note("gone", 1000.0, {STEPS: 5.0})  # it is in the sum already
    assert two.total() == {STEPS: 12.0}


def test_a_process_that_was_merged_and_is_back_is_counted_once_wherever_it_was_merged():
    one, two = Ledger(), Ledger()
    one.note("cut off", 1.0, {STEPS: 5.0})
    two.learn(one)
    one.merge("cut off")
    two.note("cut off", 2.0, {STEPS: 8.0})  # which the other one did not hear
    two.learn(one)
    one.learn(two)
    assert one.total() == two.total() == {STEPS: 8.0}
    two.merge("cut off")
    two.note("cut off", 3.0, {STEPS: 9.0})
    one.learn(two)
    assert one.total() == two.total() == {STEPS: 9.0} and (one.num_gone, one.gone) == (2, {STEPS: 8.0})


def test_what_is_kept_of_merged_processes_is_bounded_and_none_counts_twice():
    ledger = Ledger()
    for number in range(NUM_NAMES_KEPT + NUM_FIGURES_KEPT):
        ledger.note(f"engine {number}", 1.0, {STEPS: 1.0})
        ledger.merge(f"engine {number}")
        if number == 0:
            ledger.note("engine 0", 2.0, {STEPS: 2.0})  # it is back, and stays
    assert len(ledger.merged) == NUM_NAMES_KEPT + 1
    assert sum(entry is not None for entry in ledger.merged.values()) == NUM_FIGURES_KEPT + 1
    ledger.note(f"engine {NUM_NAMES_KEPT - 1}", 2.0, {STEPS: 100.0})  # what it had counted is not known any more
    ledger.note("engine 0", 3.0, {STEPS: 3.0})
    assert ledger.total() == {STEPS: NUM_NAMES_KEPT + NUM_FIGURES_KEPT + 2.0}


def test_a_process_whose_clock_is_behind_is_not_gone():
    ledger, silences = Ledger(), Silences()
    for made in (0.0, 15.0, 30.0):
        ledger.note("behind", made, {STEPS: made})
        silences.tidy(ledger, made + 10 * KEPT_SECONDS)
    assert ledger.entries.keys() == {"behind"} and ledger.total() == {STEPS: 30.0}


def test_a_sum_never_falls_while_processes_come_and_go_and_gateways_are_replaced():
    rng = random.Random(1)
    counts: dict[str, float] = {}
    gateways = [Ledger(), Ledger()]
    silences = [Silences(), Silences()]
    last = 0.0
    for turn in range(600):
        name, now = f"engine {turn // 20} {rng.randrange(2)}", 5.0 * turn
        counts[name] = counts.get(name, 0.0) + rng.random()
        for ledger in gateways:
            ledger.note(name, now, {STEPS: counts[name]})
        asked, other = rng.sample(gateways, 2)
        other.learn(asked)
        asked.learn(other)
        silences[gateways.index(asked)].tidy(asked, now)
        total = asked.total()[STEPS]
        assert total >= last
        last = total
        if turn % 100 == 99:
            place = gateways.index(other)
            gateways[place], silences[place] = Ledger(), Silences()
    assert last == pytest.approx(sum(counts.values()))
    assert len(gateways[0].entries) < 20
