"""Reads a program that the TPU compiler has scheduled: how long it says that a step takes.

A model, not a measurement. What is summed, each loop's body as often as it runs (`cost_analysis()`
counts it once):

* operations: the `estimated_cycles` that the compiler chose its tiles by, else bytes in HBM over
  the memory's bandwidth;
* collectives: bytes over the links, hidden as far as the schedule has other operations between a
  transfer's start and its end. Transfers share one queue, in the order of the schedule. What the
  compiler has fused into a matmul counts as hidden. The compiler's own figures ignore the network;
* Pallas kernels declare no cost: they are listed, and whoever knows the kernel adds its time.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2,
    "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8,
}  # fmt: skip

_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
     "replica-id", "iota", "opt-barrier", "copy-start", "copy-done", "slice-start", "slice-done",
     "async-start", "async-update", "async-done")
)  # fmt: skip
"""Nothing to do, or copies between HBM and VMEM that run beside the compute units."""

_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")

_ARRAY = re.compile(r"\b([a-z]+\d+(?:e\d+m\d+(?:fn)?)?|pred)\[([\d,]*)\]((?:\{[^}]*\})?)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Rates:
    """Of one chip. link: bytes/s of one link in one direction; links: how many a gather uses at a time."""

    clock: float
    hbm: float
    link: float
    links: int


@dataclass(frozen=True)
class Kernel:
    """A Pallas kernel: where it comes from, how often it runs, the shapes that it writes."""

    name: str
    calls: int
    outputs: tuple[tuple[int, ...], ...]


@dataclass
class Cost:
    """Seconds of one device for one run of the program.

    matmul, other: operations with and without a matrix multiplication.
    exposed:       time that nothing but the network works.
    network:       time the links are busy, hidden or not.
    traffic:       by kind of collective: how often, bytes sent by a device.
    """

    matmul: float = 0.0
    other: float = 0.0
    exposed: float = 0.0
    network: float = 0.0
    traffic: dict[str, tuple[int, float]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    top: list[tuple[float, str]] = field(default_factory=list)

    @property
    def compute(self) -> float:
        """Without Pallas kernels and without exposed transfers."""
        return self.matmul + self.other


@dataclass(frozen=True)
class _Op:
    name: str
    type: str
    kind: str
    rest: str

    @property
    def arguments(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0] if "), " in self.rest else self.rest)

    def attribute(self, key: str) -> str | None:
        found = re.search(rf"{key}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else None


def read(text: str, rates: Rates, kernel: Callable[[Kernel], float] = lambda _: 0.0) -> Cost:
    """The cost of a scheduled module, `compiled.as_text()`.

    kernel: seconds of one call; they hide transfers like any other operation but are not part of
    `matmul` and `other`.
    """
    return _Reader(text, rates, kernel).cost()


class _Reader:
    def __init__(self, text: str, rates: Rates, kernel: Callable[[Kernel], float]) -> None:
        self.rates, self.kernel = rates, kernel
        self.bodies: dict[str, list[_Op]] = {}
        self.entry = ""
        current: list[_Op] | None = None
        for line in text.splitlines():
            if not line.startswith(" ") and (head := _HEAD.match(line)):
                current = self.bodies.setdefault(head.group(2), [])
                if head.group(1):
                    self.entry = head.group(2)
            elif current is not None and (found := _LINE.match(line)):
                current.append(_Op(*found.groups()))
        self.traffic: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        self.kernels: dict[tuple[str, tuple[tuple[int, ...], ...]], int] = defaultdict(int)
        self.made = Cost()

    def cost(self) -> Cost:
        if not self.entry:
            raise ValueError("no entry computation: not the text of a compiled module")
        self._run(self.entry, 1)
        self.made.traffic = dict(self.traffic)
        self.made.kernels = [Kernel(name, n, outputs) for (name, outputs), n in self.kernels.items()]
        self.made.top.sort(reverse=True)
        del self.made.top[40:]
        return self.made

    def _run(self, body: str, times: int) -> float:
        """One run's seconds, kernels and exposed transfers included; adds `times` runs to the cost."""
        types = {op.name: op.type for op in self.bodies[body]}
        now = link_free = 0.0
        arrives: dict[str, float] = {}
        for op in self.bodies[body]:
            if op.kind == "while":
                trips = self._trips(op.attribute("condition"))
                now += trips * self._run(op.attribute("body") or "", times * trips)
                continue
            if op.kind in ("call", "conditional"):
                called = op.attribute("to_apply") or op.attribute("true_computation")
                if called in self.bodies:
                    now += self._run(called, times)
                continue
            transfer = self._transfer(op, types)
            if transfer is not None:
                kind, sent, seconds = transfer
                count, total = self.traffic[kind]
                self.traffic[kind] = (count + times, total + times * sent)
                self.made.network += times * seconds
                end = max(now, link_free) + seconds
                if op.kind.endswith("-start"):
                    arrives[op.name] = link_free = end
                elif op.kind != "fusion" or not self._inside(op, "convolution"):
                    self._expose(op, times * (end - now))
                    now = link_free = end
                    continue
            if op.kind.endswith("-done") and (end := arrives.pop(next(iter(op.arguments), ""), 0.0)):
                if end > now:
                    self._expose(op, times * (end - now))
                    now = end
                continue
            if op.kind in _FREE or op.kind.endswith(("-start", "-done")):
                continue
            now += self._operation(op, types, times)
        return now

    def _expose(self, op: _Op, seconds: float) -> None:
        self.made.exposed += seconds
        self.made.top.append((seconds, f"exposed {op.kind} {op.name} {op.type[:60]}"))

    def _operation(self, op: _Op, types: dict[str, str], times: int) -> float:
        if op.kind == "custom-call":
            if "tpu_custom_call" not in op.rest:
                return 0.0
            name = found.group(1) if (found := _NAME.search(op.rest)) else op.name
            shapes = tuple(dims for _, dims, _ in _arrays(op.type))
            self.kernels[name, shapes] += times
            return self.kernel(Kernel(name, 1, shapes))
        cycles = _CYCLES.search(op.rest)
        seconds = (
            int(cycles.group(1)) / self.rates.clock if cycles else self._bytes(op, types) / self.rates.hbm
        )
        matmul = op.kind == "convolution" or self._inside(op, "convolution")
        if matmul:
            self.made.matmul += times * seconds
        else:
            self.made.other += times * seconds
        source = found.group(1)[-90:] if (found := _NAME.search(op.rest)) else ""
        self.made.top.append(
            (times * seconds, f"{'matmul' if matmul else 'other'} x{times} {op.name} {op.type[:60]} {source}")
        )
        return seconds

    def _bytes(self, op: _Op, types: dict[str, str]) -> float:
        """HBM traffic of an operation without an estimate; stacks are updated and read by the slice."""
        read = [_size(types[name]) for name in op.arguments if name in types]
        written = _size(op.type)
        if op.kind == "dynamic-update-slice" or self._inside(op, "dynamic-update-slice"):
            rest = max(0.0, sum(read) - max(read, default=0.0))
            return 2 * rest
        if op.kind in ("dynamic-slice", "slice", "gather") or self._inside(
            op, "dynamic-slice", "slice", "gather"
        ):
            return written + sum(min(part, max(written, 1.0)) for part in read)
        return written + sum(read)

    def _transfer(self, op: _Op, types: dict[str, str]) -> tuple[str, float, float] | None:
        """(kind, bytes a device sends, seconds) of a collective."""
        if op.kind.endswith("-done"):
            return None
        plain = op.kind.removesuffix("-start")
        if plain in _COLLECTIVES:
            kind, line, shapes = plain, op, types
        elif op.kind == "fusion" and (inner := self._collective_in(op)) is not None:
            kind, line, shapes = inner
        else:
            return None
        read = sum(_size(shapes[name], vmem=True) for name in line.arguments if name in shapes)
        whole = max(read, max((_bytes_of(*a) for a in _arrays(line.type)), default=0.0))
        n = _group(line.rest)
        if kind == "collective-permute":
            return kind, read, read / self.rates.link
        if op.kind == "fusion" and kind == "all-reduce" and _size(op.type, vmem=True) <= 0.6 * whole:
            kind = "reduce-scatter"  # fused with the slice that each device keeps
        sent = whole * (n - 1) / n * (2 if kind == "all-reduce" else 1)
        return kind, sent, sent / (self.rates.link * self.rates.links)

    def _collective_in(self, op: _Op) -> tuple[str, _Op, dict[str, str]] | None:
        body = self.bodies.get(op.attribute("calls") or "", [])
        for inner in body:
            kind = inner.kind.removesuffix("-start")
            if kind in _COLLECTIVES:
                return kind, inner, {o.name: o.type for o in body}
        return None

    def _inside(self, op: _Op, *kinds: str) -> bool:
        pending, seen = [op.attribute("calls")], set()
        while pending:
            body = pending.pop()
            if body is None or body in seen:
                continue
            seen.add(body)
            for inner in self.bodies.get(body, []):
                if inner.kind in kinds:
                    return True
                if inner.kind == "fusion":
                    pending.append(inner.attribute("calls"))
        return False

    def _trips(self, condition: str | None) -> int:
        """How often a loop runs: its counter starts at 0 and is compared with this constant."""
        constants = [
            int(found.group(1))
            for op in self.bodies.get(condition or "", [])
            if op.kind == "constant" and (found := re.match(r"(\d+)\)", op.rest))
        ]
        return max(constants, default=1)


def _arrays(text: str) -> list[tuple[str, tuple[int, ...], bool]]:
    """(element type, shape, lies in VMEM) of every array in a type."""
    return [
        (kind, tuple(int(n) for n in dims.split(",")) if dims else (), "S(1)" in layout)
        for kind, dims, layout in _ARRAY.findall(text)
    ]


def _bytes_of(kind: str, dims: tuple[int, ...], _: bool = False) -> float:
    return _BYTES.get(kind, 0) * math.prod(dims)


def _size(text: str, vmem: bool = False) -> float:
    """Bytes of a type's arrays; those in VMEM cost no HBM traffic and count only if asked for."""
    return sum(_bytes_of(*array) for array in _arrays(text) if vmem or not array[2])


def _group(rest: str) -> int:
    """Devices that take part in a collective together."""
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", rest):
        return int(found.group(2))
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return found.group(1).count(",") + 1
    return 2
