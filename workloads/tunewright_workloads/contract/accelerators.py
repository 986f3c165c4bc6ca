"""The catalog of accelerators: topologies, machines, memory, peak rates and list prices.

Topology rows and label strings: GKE's TPU documentation and the tables of xpk. Slice names count
TensorCores for v5p and v7x (two a chip) and chips for v5e and v6e. Prices are list prices in US
dollars per chip-hour and each carries its date and source.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show
from tunewright_workloads.contract.prices import Book, Mode, Price, PriceModel, Quote, quote


class Slice(BaseModel):
    """One way to get a topology: so many machines with so many chips each."""

    model_config = ConfigDict(frozen=True)

    topology: str
    hosts: int = Field(ge=1)
    chips_per_host: int = Field(ge=0)
    machine: str

    @property
    def chips(self) -> int:
        return self.hosts * self.chips_per_host

    @property
    def multi_host(self) -> bool:
        return self.hosts > 1


class Accelerator(BaseModel):
    """A generation of chips.

    hbm_gib:     per chip, GiB as the compiler counts it where that was measured, else nominal GB
                 of the data sheet taken as 10^9 bytes.
    peak_flops:  per chip, dense bf16 matmul, FLOP/s.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["cpu", "tpu", "gpu"]
    label: str | None = Field(None, description="Value of the node label that selects it")
    resource: str | None = Field(None, description="Extended resource that a pod asks for")
    hbm_gib: float = 0.0
    hbm_bandwidth: float = Field(0.0, description="bytes/s per chip")
    peak_flops: float = 0.0
    devices_per_chip: int = 1
    cores_per_chip: int = 1
    price: Price = Field(description="on demand")
    more_prices: tuple[Price, ...] = Field((), description="of other models, those that have a source")
    slices: tuple[Slice, ...] = ()
    serving: Literal["verified", "experimental", "no"] = "no"

    def prices(self, book: Book | None = None) -> dict[PriceModel, Price]:
        """Every known price by model; those of `book` stand before the catalog's."""
        listed = {p.model: p for p in (self.price, *self.more_prices)}
        return {**listed, **(book or {}).get(self.name, {})}

    def quote(self, mode: Mode, book: Book | None = None) -> Quote:
        """What a chip-hour costs when the nodes are obtained by `mode`."""
        return quote(self.name, self.prices(book), mode)

    def slice_name(self, chips: int) -> str:
        """The name people use, `v5p-8` for 4 chips, `v6e-8` for 8."""
        return f"{self.name}-{chips * self.cores_per_chip}"


TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
GPU_LABEL = "cloud.google.com/gke-accelerator"
TPU_RESOURCE = "google.com/tpu"
GPU_RESOURCE = "nvidia.com/gpu"


def _rows(machine: str, chips: int, **hosts: int) -> tuple[Slice, ...]:
    return tuple(
        Slice(topology=t.removeprefix("t"), hosts=n, chips_per_host=chips, machine=machine)
        for t, n in hosts.items()
    )


_PAPER = "arXiv 2605.25645, unit prices implied by its tables"
_LIST = "Cloud TPU list price, US regions, from memory: check it before you budget by it"
_TABLE = "SkyPilot's table of Google Cloud prices (skypilot-catalog v8, commit 006059e0f0), us-east5"
"""One region for all, in which every one of these chips is sold. Spot prices change daily and differ
by region: us-central1 asked half of these or less for TPUs in the same table, more for H100."""


def _spot(usd: float, what: str = "") -> tuple[Price, ...]:
    return (Price(usd=usd, date="2026-12-01", source=_TABLE + what, model="spot"),)


_GIB = 1e9 / 2**30

_ALL = (
    Accelerator(
        name="cpu", kind="cpu", price=Price(usd=0.0, date="2026-12-01", source="ordinary nodes are not priced here"),
        slices=(Slice(topology="1", hosts=1, chips_per_host=0, machine="any"),), serving="verified",
    ),
    Accelerator(
        name="v5e", kind="tpu", label="tpu-v5-lite-podslice", resource=TPU_RESOURCE, hbm_gib=16 * _GIB,
        hbm_bandwidth=819e9, peak_flops=197e12, serving="experimental",
        price=Price(usd=1.20, date="2026-12-01", source=_TABLE), more_prices=_spot(0.60),
        slices=(
            *_rows("ct5lp-hightpu-1t", 1, t1x1=1), *_rows("ct5lp-hightpu-4t", 4, t2x2=1),
            *_rows("ct5lp-hightpu-8t", 8, t2x4=1),
            *_rows("ct5lp-hightpu-4t", 4, t2x4=2, t4x4=4, t4x8=8, t8x8=16, t8x16=32, t16x16=64),
        ),
    ),
    Accelerator(
        name="v5p", kind="tpu", label="tpu-v5p-slice", resource=TPU_RESOURCE, hbm_gib=95.74,
        hbm_bandwidth=2.765e12, peak_flops=459e12, cores_per_chip=2, serving="experimental",
        price=Price(usd=4.20, date="2026-05-25", source=_PAPER), more_prices=_spot(1.68),
        slices=_rows("ct5p-hightpu-4t", 4, t2x2x1=1, t2x2x2=2, t2x2x4=4, t2x4x4=8, t4x4x4=16, t4x4x8=32),
    ),
    Accelerator(
        name="v6e", kind="tpu", label="tpu-v6e-slice", resource=TPU_RESOURCE, hbm_gib=32 * _GIB,
        hbm_bandwidth=1.64e12, peak_flops=918e12, serving="verified",
        price=Price(usd=2.69, date="2026-05-25", source=_PAPER), more_prices=_spot(1.215),
        slices=(
            *_rows("ct6e-standard-1t", 1, t1x1=1), *_rows("ct6e-standard-4t", 4, t2x2=1),
            *_rows("ct6e-standard-8t", 8, t2x4=1),
            *_rows("ct6e-standard-4t", 4, t2x4=2, t4x4=4, t4x8=8, t8x8=16, t8x16=32, t16x16=64),
        ),
    ),
    Accelerator(
        name="v7x", kind="tpu", label="tpu7x", resource=TPU_RESOURCE, hbm_gib=192 * _GIB,
        hbm_bandwidth=7.37e12, peak_flops=2307e12, devices_per_chip=2, cores_per_chip=2, serving="verified",
        price=Price(usd=12.00, date="2026-12-01", source=_LIST),
        slices=(
            *_rows("tpu7x-standard-1t", 1, t1x1x1=1),
            *_rows("tpu7x-standard-4t", 4, t2x2x1=1, t2x2x2=2, t2x2x4=4, t2x4x4=8, t4x4x4=16),
        ),
    ),
    Accelerator(
        name="h100", kind="gpu", label="nvidia-h100-80gb", resource=GPU_RESOURCE, hbm_gib=80.0,
        hbm_bandwidth=3.35e12, peak_flops=989e12, serving="verified",
        price=Price(usd=11.06, date="2026-05-25", source=_PAPER),
        more_prices=_spot(2.699, ": 2.408 for the GPU and 0.291 for its share of an a3-highgpu"),
        slices=(
            Slice(topology="1", hosts=1, chips_per_host=1, machine="a3-highgpu-1g"),
            Slice(topology="2", hosts=1, chips_per_host=2, machine="a3-highgpu-2g"),
            Slice(topology="4", hosts=1, chips_per_host=4, machine="a3-highgpu-4g"),
            Slice(topology="8", hosts=1, chips_per_host=8, machine="a3-highgpu-8g"),
        ),
    ),
)  # fmt: skip

ACCELERATORS: dict[str, Accelerator] = {a.name: a for a in _ALL}

_V5P_AXIS = re.compile(r"^(\d+)x(\d+)x(\d+)$")


def accelerator(name: str, place: str = "spec.accelerator.type") -> Accelerator:
    """The catalog's entry. Raises UserError naming `place` and the nearest known type."""
    if name in ACCELERATORS:
        return ACCELERATORS[name]
    near = nearest(name.split("-")[0], list(ACCELERATORS))
    fix = f"Did you mean {near}?" if near else None
    raise UserError(Fault(place, f"must be one of {', '.join(ACCELERATORS)}", show(name), fix))


def slice_of(
    kind: str,
    topology: str | None = None,
    count: int | None = None,
    chips_per_host: int | None = None,
    place: str = "spec.accelerator",
) -> Slice:
    """The machines behind `accelerator: {type, topology | count, chipsPerHost}`.

    TPUs are named by topology, GPUs by count, cpu by nothing. Where one topology exists on two
    machine shapes (v6e and v5e 2x4) the single host is meant unless chipsPerHost says otherwise.
    Raises UserError naming the field below `place`.
    """
    chip = accelerator(kind, f"{place}.type")
    if chip.kind == "cpu":
        if topology is not None:
            raise UserError(
                Fault(f"{place}.topology", "does not exist for type cpu", show(topology), "Remove it.")
            )
        if count is not None:
            raise UserError(Fault(f"{place}.count", "does not exist for type cpu", show(count), "Remove it."))
        return chip.slices[0]
    if chip.kind == "gpu":
        if topology is not None:
            raise UserError(
                Fault(f"{place}.topology", f"does not exist for type {kind}", show(topology), "Use count.")
            )
        wanted = 1 if count is None else count
        for row in chip.slices:
            if row.chips_per_host == wanted:
                return row
        counts = ", ".join(str(r.chips_per_host) for r in chip.slices)
        raise UserError(Fault(f"{place}.count", f"must be one of {counts} for type {kind}", show(count)))
    if count is not None:
        raise UserError(
            Fault(f"{place}.count", f"does not exist for type {kind}", show(count), "Use topology.")
        )
    if topology is None:
        examples = ", ".join(dict.fromkeys(r.topology for r in chip.slices))
        raise UserError(
            Fault(f"{place}.topology", f"is required for type {kind}", None, f"One of {examples}.")
        )
    rows = [r for r in chip.slices if r.topology == topology] or _large_v5p(chip, topology)
    if not rows:
        known = list(dict.fromkeys(r.topology for r in chip.slices))
        near = nearest(topology, known)
        fix = f"Did you mean {near}?" if near else None
        raise UserError(
            Fault(
                f"{place}.topology", f"must be one of {', '.join(known)} for type {kind}", show(topology), fix
            )
        )
    if chips_per_host is None:
        return min(rows, key=lambda r: r.hosts)
    for row in rows:
        if row.chips_per_host == chips_per_host:
            return row
    options = ", ".join(str(r.chips_per_host) for r in rows)
    raise UserError(
        Fault(f"{place}.chipsPerHost", f"must be {options} for {kind} {topology}", show(chips_per_host))
    )


def _large_v5p(chip: Accelerator, topology: str) -> list[Slice]:
    """v5p above 4x4x8: any AxBxC of multiples of four in ascending order, product / 4 machines."""
    match = _V5P_AXIS.match(topology)
    if chip.name != "v5p" or not match:
        return []
    axes = [int(a) for a in match.groups()]
    product = math.prod(axes)
    if any(a % 4 or a == 0 for a in axes) or axes != sorted(axes) or product > 8960:
        return []
    return [Slice(topology=topology, hosts=product // 4, chips_per_host=4, machine="ct5p-hightpu-4t")]
