"""The loop between requests and the compiled programs: admit, decode all, hand out, retire.

Continuous batching over the runner's slots: a request waits in a queue until a slot is free, and
leaves its slot the moment it ends or its client is gone. The loop runs in a thread of its own;
what it says to a request goes through a callback.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from tunewright_workloads.serve.sampling import Sampled, Sampler, Sampling
from tunewright_workloads.serve.text import Decoder, Pieces, Stops

log = logging.getLogger(__name__)

Finish = Literal["stop", "length"]


class Programs(Protocol):
    """What the loop needs of a runner."""

    slots: int

    def prefill(self, slot: int, tokens: list[int]) -> None: ...
    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray: ...


class StoppedError(RuntimeError):
    """The engine was told to stop before the generation had ended."""


@dataclass(frozen=True)
class Delta:
    """What one step added: a token, the text that is now safe to show, and how it ended if it did.

    `error`: the engine broke; nothing else follows.
    """

    token: Sampled | None = None
    text: str = ""
    finish: Finish | None = None
    error: BaseException | None = None


@dataclass
class Sequence:
    """One generation. The loop alone touches what has no public setter.

    prompt:  token ids, at least one.
    limit:   tokens to generate at most.
    top:     alternatives to report a token; None: no log-probabilities at all.
    """

    prompt: list[int]
    limit: int
    sampling: Sampling
    stop_tokens: frozenset[int]
    stops: tuple[str, ...]
    top: int | None
    emit: Callable[[Delta], None]
    cancelled: bool = False
    generated: list[int] = field(default_factory=list)

    def cancel(self) -> None:
        """The client is gone: the slot is free at the next step."""
        self.cancelled = True


class _Running:
    """A sequence in a slot."""

    def __init__(self, sequence: Sequence, pieces: Pieces) -> None:
        self.sequence = sequence
        self.sampler = Sampler(sequence.sampling, sequence.stop_tokens)
        self.decoder = Decoder(pieces)
        self.stops = Stops(sequence.stops)
        self.token = sequence.prompt[-1]
        self.position = len(sequence.prompt) - 1

    def step(self, logits: np.ndarray) -> bool:
        """Takes the next token. True when the sequence has ended."""
        s = self.sequence
        sampled = self.sampler.choose(logits, s.top)
        s.generated.append(sampled.token)
        self.token, self.position = sampled.token, self.position + 1
        finish: Finish | None = None
        if sampled.token in s.stop_tokens:
            text, finish = self.stops.flush(), "stop"
        else:
            text, met = self.decoder.push(sampled.token), False
            if len(s.generated) > s.sampling.min_tokens:
                text, met = self.stops.push(text)
            if met:
                finish = "stop"
            elif len(s.generated) >= s.limit:
                text, finish = text + self.stops.flush(), "length"
        s.emit(Delta(sampled, text, finish))
        return finish is not None


class Scheduler:
    """Owns the thread. `submit` may be called from any other."""

    def __init__(self, programs: Programs, pieces: Pieces) -> None:
        self._programs, self._pieces = programs, pieces
        self._waiting: deque[Sequence] = deque()
        self._slots: list[_Running | None] = [None] * programs.slots
        self._wake = threading.Condition()
        self._stopping = False
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return sum(slot is not None for slot in self._slots)

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and self._broken is None

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Ends the loop after the step in hand; whoever still waits gets `StoppedError`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if wait:
            self._thread.join()

    def submit(self, sequence: Sequence) -> None:
        with self._wake:
            if not self._stopping and self._broken is None:
                self._waiting.append(sequence)
                self._wake.notify()
                return
        sequence.emit(Delta(error=self._broken or StoppedError("the engine is stopping")))

    def _run(self) -> None:
        try:
            while self._wait():
                self._admit()
                self._step()
            self._fail(StoppedError("the engine is stopping"))
        except BaseException as error:
            log.exception("the engine broke")
            self._fail(error)

    def _wait(self) -> bool:
        """Sleeps while there is nothing to do. False when the loop is to end."""
        with self._wake:
            while not self._stopping and not self._waiting and self.running == 0:
                self._wake.wait()
            return not self._stopping

    def _admit(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot is not None:
                if slot.sequence.cancelled:
                    self._slots[index] = None
                else:
                    continue
            while self._waiting:
                sequence = self._waiting.popleft()
                if not sequence.cancelled:
                    self._programs.prefill(index, sequence.prompt[:-1])
                    self._slots[index] = _Running(sequence, self._pieces)
                    break

    def _step(self) -> None:
        if self.running == 0:
            return
        tokens, positions = (np.zeros(len(self._slots), np.int32) for _ in range(2))
        for index, slot in enumerate(self._slots):
            if slot is not None:
                tokens[index], positions[index] = slot.token, slot.position
        logits = self._programs.decode(tokens, positions)
        for index, slot in enumerate(self._slots):
            if slot is not None and (slot.sequence.cancelled or slot.step(logits[index])):
                self._slots[index] = None

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._broken = error
            left = [slot.sequence for slot in self._slots if slot is not None] + list(self._waiting)
            self._slots = [None] * len(self._slots)
            self._waiting.clear()
        for sequence in left:
            sequence.emit(Delta(error=error))
