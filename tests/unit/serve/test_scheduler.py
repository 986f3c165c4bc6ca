"""The loop over slots, with programs that compute something a test can foresee."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tunewright_workloads.gemma import tiny
from tunewright_workloads.serve.sampling import Sampling
from tunewright_workloads.serve.scheduler import Delta, Scheduler, Sequence
from tunewright_workloads.serve.text import Pieces

PIECES = Pieces(tiny.ASSETS / "tokenizer.json")


class Counting:
    """Programs whose next token is the last one plus one; a slot must hold the whole past."""

    def __init__(self, slots: int, broken_after: int | None = None) -> None:
        self.slots, self.broken_after = slots, broken_after
        self.cache: list[dict[int, int]] = [{} for _ in range(slots)]
        self.steps = self.most = 0
        self.gate = threading.Event()
        self.gate.set()

    def prefill(self, slot: int, tokens: list[int]) -> None:
        self.cache[slot] = dict(enumerate(tokens))

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        self.gate.wait(10)
        self.steps += 1
        if self.broken_after is not None and self.steps > self.broken_after:
            raise MemoryError("no memory")
        logits = np.zeros((self.slots, 1024), np.float32)
        for slot in range(self.slots):
            self.cache[slot][int(positions[slot])] = int(tokens[slot])
            # Broken on purpose if a slot's past has a hole: the answer would then be token 0.
            past = [self.cache[slot].get(i) for i in range(int(positions[slot]) + 1)]
            if None not in past:
                logits[slot, (int(tokens[slot]) + 1) % 1024] = 5
        self.most = max(self.most, int((tokens > 0).sum()))
        return logits


class Inbox:
    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.done = threading.Event()

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.finish or delta.error:
            self.done.set()

    def tokens(self) -> list[int]:
        assert self.done.wait(20)
        return [d.token.token for d in self.deltas if d.token]


def sequence(prompt: list[int], limit: int = 5, **changes: Any) -> tuple[Sequence, Inbox]:
    inbox = Inbox()
    fields: dict[str, Any] = {
        "sampling": Sampling(temperature=0), "stop_tokens": frozenset(), "stops": (), "top": None, **changes,
    }  # fmt: skip
    return Sequence(prompt=prompt, limit=limit, emit=inbox, **fields), inbox


@pytest.fixture
def programs() -> Counting:
    return Counting(slots=3)


@pytest.fixture
def scheduler(programs: Counting) -> Any:
    made = Scheduler(programs, PIECES)
    made.start()
    yield made
    programs.gate.set()
    made.stop()


def test_each_sequence_gets_its_own_tokens_beside_the_others(
    scheduler: Scheduler, programs: Counting
) -> None:
    work = [sequence([300 + 40 * n, 301 + 40 * n], limit=4 + n) for n in range(10)]
    for made, _ in work:
        scheduler.submit(made)
    for n, (_, inbox) in enumerate(work):
        assert inbox.tokens() == [302 + 40 * n + i for i in range(4 + n)]
        assert inbox.deltas[-1].finish == "length"
    assert programs.most == 3, "all slots were in use at once"
    assert scheduler.waiting == scheduler.running == 0


def test_a_prompt_of_one_token_needs_no_prefill(scheduler: Scheduler) -> None:
    made, inbox = sequence([400])
    scheduler.submit(made)
    assert inbox.tokens() == [401, 402, 403, 404, 405]


def test_a_stop_token_ends_and_adds_no_text(scheduler: Scheduler) -> None:
    made, inbox = sequence([400], limit=50, stop_tokens=frozenset({404}))
    scheduler.submit(made)
    assert inbox.tokens() == [401, 402, 403, 404]
    assert inbox.deltas[-1].finish == "stop"
    assert inbox.deltas[-1].text == ""


def test_a_stop_string_ends_and_is_not_shown(scheduler: Scheduler) -> None:
    texts = [PIECES.bytes(i).decode() for i in range(401, 411)]
    stop = texts[3] + texts[4][:1]
    made, inbox = sequence([400], limit=10, stops=(stop,))
    scheduler.submit(made)
    inbox.tokens()
    whole = "".join(texts)
    assert "".join(d.text for d in inbox.deltas) == whole[: whole.index(stop)]
    assert inbox.deltas[-1].finish == "stop"


def test_stop_strings_wait_for_the_least_number_of_tokens(scheduler: Scheduler) -> None:
    stop = PIECES.bytes(401).decode()
    made, inbox = sequence([400], limit=4, stops=(stop,), sampling=Sampling(temperature=0, min_tokens=3))
    scheduler.submit(made)
    assert len(inbox.tokens()) == 4


def test_a_cancelled_sequence_leaves_its_slot_and_the_queue(scheduler: Scheduler, programs: Counting) -> None:
    programs.gate.clear()
    work = [sequence([300 + 50 * n], limit=10**6) for n in range(5)]
    last, inbox = sequence([900], limit=3)
    for made, _ in [*work, (last, inbox)]:
        scheduler.submit(made)
    for made, _ in work:
        made.cancel()
    programs.gate.set()
    assert inbox.tokens() == [901, 902, 903]
    assert all(len(other.deltas) <= 1 for _, other in work)


def test_an_engine_that_breaks_tells_everybody_and_is_unhealthy() -> None:
    scheduler = Scheduler(Counting(slots=1, broken_after=2), PIECES)
    scheduler.start()
    work = [sequence([300 + 50 * n], limit=100) for n in range(3)]
    for made, _ in work:
        scheduler.submit(made)
    for _, inbox in work:
        assert inbox.done.wait(20)
        assert isinstance(inbox.deltas[-1].error, MemoryError)
    late, inbox = sequence([300])
    scheduler.submit(late)
    assert isinstance(inbox.deltas[-1].error, MemoryError)
    assert not scheduler.healthy


def test_what_waits_when_the_engine_stops_is_told(programs: Counting) -> None:
    scheduler = Scheduler(programs, PIECES)
    programs.gate.clear()
    scheduler.start()
    work = [sequence([300], limit=10**6) for _ in range(5)]
    for made, _ in work:
        scheduler.submit(made)
    programs.gate.set()
    scheduler.stop()
    for _, inbox in work:
        assert inbox.deltas[-1].error is not None
