"""What a history keeps: by number and by size, whichever limit is reached first."""

from __future__ import annotations

import pytest

from pardbg.store.history import History


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> History:
    """100 values, 1,000 bytes."""
    monkeypatch.setattr(History, "MAX_BYTES", 1000)
    return History(100)


def test_what_was_evicted_takes_no_bytes(small: History) -> None:
    """5 bytes each: 125 values, a quarter more than 100, are 625 bytes, so size never evicts."""
    fewest = 1000
    for t in range(5000):
        small.add(t, t, 5)
        if t >= 100:
            fewest = min(fewest, len(small))
    assert fewest == 100
    assert small.num_bytes == 5 * len(small)
    assert small.evicted + len(small) == 5000


def test_by_size_the_oldest_go_until_half_is_left(small: History) -> None:
    small.add(0, "large", 600)
    for t in range(1, 5):
        small.add(t, "small", 100)
    assert (len(small), small.num_bytes) == (5, 1000)
    small.add(5, "small", 100)  # 1,100: 600 more than half
    assert [value for _, value in small.last(None, 9)] == ["small"] * 5
    assert (small.num_bytes, small.evicted) == (500, 1)


def test_what_is_too_old_goes_but_for_a_fifth_of_the_limit() -> None:
    """A value a second, those of 30 s are kept, and a quarter more at times: never 100."""
    kept = History(100, keep_ns=30)
    sizes = []
    for t in range(1000):
        kept.add(t, t, 5)
        sizes.append(len(kept))
    assert max(sizes) <= 41 and min(sizes[40:]) >= 30
    assert kept.last(None, 99)[-1] == (999, 999) and kept.num_bytes == 5 * len(kept)
    for t in range(10**6, 10**6 + 20):  # after a long silence
        kept.add(t, t, 5)
    assert len(kept) >= 20
