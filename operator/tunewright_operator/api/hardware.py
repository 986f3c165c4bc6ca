"""`spec.accelerator`: the slice, how it is obtained, and the mesh over its devices."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunewright_operator.api.base import Section, section
from tunewright_operator.api.rules import PRESERVE, Rule, listed, mapped
from tunewright_operator.api.values import Int, Name
from tunewright_workloads.contract.accelerators import ACCELERATORS, Accelerator, Mode, Slice, slice_of
from tunewright_workloads.contract.faults import UserError, nearest

Type = Literal["cpu", "v5e", "v5p", "v6e", "v7x", "h100"]

_NAMED: tuple[Mode, ...] = ("reservation", "computeClass")


class Provisioning(Section):
    """How the nodes are obtained."""

    mode: Mode = Field(
        "onDemand",
        description="onDemand; spot (cheaper, preempted at any time, resumed from the last checkpoint); "
        "flexStart (queued capacity for at most 7 days, one machine); reservation or computeClass, by name.",
    )
    name: Name | None = Field(None, description="Name of the reservation or of the compute class.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "provisioning-name-required",
            "is required for the modes reservation and computeClass",
            lambda p: p.mode not in _NAMED or p.name is not None,
            f"!(self.mode in {listed(_NAMED)}) || has(self.name)",
            fields=("name", "mode"),
            fix="Give the name of the reservation or of the compute class",
        ),
        Rule(
            "provisioning-name-refused",
            "exists only for the modes reservation and computeClass",
            lambda p: p.mode in _NAMED or p.name is None,
            f"self.mode in {listed(_NAMED)} || !has(self.name)",
            fields=("name", "mode"),
            fix="Remove it, or set mode",
        ),
    )


def _tpus() -> list[Accelerator]:
    return [a for a in ACCELERATORS.values() if a.kind == "tpu"]


def _gpus() -> list[Accelerator]:
    return [a for a in ACCELERATORS.values() if a.kind == "gpu"]


def _topologies(chip: Accelerator) -> list[str]:
    return list(dict.fromkeys(row.topology for row in chip.slices))


def _chips(chip: Accelerator) -> dict[str, list[int]]:
    """Topology -> the chips per machine that it can be had with."""
    return {t: [r.chips_per_host for r in chip.slices if r.topology == t] for t in _topologies(chip)}


TPUS = listed([a.name for a in _tpus()])
GPUS = listed([a.name for a in _gpus()])

# v5p has no largest row: every AxBxC of ascending multiples of four up to 8,960 chips.
_LARGE_V5P = (
    "(self.type == 'v5p' && self.topology.matches(r'^[1-9][0-9]{0,2}x[1-9][0-9]{0,2}x[1-9][0-9]{0,2}$')"
    " && self.topology.split('x').all(a, int(a) % 4 == 0)"
    " && int(self.topology.split('x')[0]) <= int(self.topology.split('x')[1])"
    " && int(self.topology.split('x')[1]) <= int(self.topology.split('x')[2])"
    " && int(self.topology.split('x')[0]) * int(self.topology.split('x')[1])"
    " * int(self.topology.split('x')[2]) <= 8960)"
)


def _topology_rule(chip: Accelerator) -> Rule:
    known = _topologies(chip)
    more = " (or AxBxC of ascending multiples of 4)" if chip.name == "v5p" else ""
    large = f" || {_LARGE_V5P}" if chip.name == "v5p" else ""
    return Rule(
        f"topology-{chip.name}",
        f"must be one of {', '.join(known)}{more} for type {chip.name}",
        lambda a: a.type != chip.name or a.topology is None or _exists(a),
        f"self.type != '{chip.name}' || !has(self.topology) || self.topology in {listed(known)}{large}",
        fields=("topology", "type"),
        hint=lambda a: _did_you_mean(a.topology, known),
    )


def _exists(a: AcceleratorBase) -> bool:
    try:
        slice_of(a.type, a.topology)
    except UserError:
        return False
    return True


def _did_you_mean(value: str, known: list[str]) -> str | None:
    near = nearest(value, known)
    return f"Did you mean {near}?" if near else None


def _chips_rule(chip: Accelerator) -> Rule:
    table = _chips(chip)
    ambiguous = {t: c for t, c in table.items() if len(c) > 1}
    also = "".join(f" ({' or '.join(map(str, c))} for {t})" for t, c in ambiguous.items())
    # A large v5p has machines of four chips, like every other v5p.
    other = "self.chipsPerHost == 4" if chip.name == "v5p" else "true"
    return Rule(
        f"chips-per-host-{chip.name}",
        f"must be the chips of one machine of this {chip.name} topology{also}",
        lambda a: a.type != chip.name or a.chips_per_host is None or _chips_fit(a),
        f"self.type != '{chip.name}' || !has(self.chipsPerHost) || !has(self.topology)"
        f" || (self.topology in {mapped(table)} ?"
        f" self.chipsPerHost in {mapped(table)}[self.topology] : {other})",
        fields=("chipsPerHost", "type", "topology"),
        fix="Leave it out to get the single machine where there is a choice",
    )


def _count_rule(chip: Accelerator) -> Rule:
    counts = [row.chips_per_host for row in chip.slices]
    return Rule(
        f"count-{chip.name}",
        f"must be one of {', '.join(map(str, counts))} for type {chip.name}",
        lambda a: a.type != chip.name or a.count is None or a.count in counts,
        f"self.type != '{chip.name}' || !has(self.count) || self.count in {listed(counts)}",
        fields=("count", "type"),
    )


def _chips_fit(a: AcceleratorBase) -> bool:
    slice_of(a.type, a.topology)
    try:
        slice_of(a.type, a.topology, None, a.chips_per_host)
    except UserError:
        return False
    return True


def _single_host_cel() -> str:
    """CEL: whether the accelerator is one machine; true where what it reads is missing.

    Only lists of the catalog are searched: a key put together by `+` has no bound for the API
    server's estimate of the cost.
    """
    single = {a.name: [t for t in _topologies(a) if slice_of(a.name, t).hosts == 1] for a in _tpus()}
    largest = {t: max(c) for a in _tpus() for t, c in _chips(a).items() if len(c) > 1}
    return (
        f"(!(self.type in {TPUS}) || !has(self.topology) || (self.topology in {mapped(single)}[self.type]"
        f" && !(has(self.chipsPerHost) && self.topology in {mapped(largest)}"
        f" && self.chipsPerHost < {mapped(largest)}[self.topology])))"
    )


class AcceleratorBase(Section):
    """One slice: a TPU by topology, GPUs by count, ordinary nodes by nothing more."""

    type: Type = Field(
        description="Generation of the chips. cpu runs on ordinary nodes and on a laptop.", examples=["v5p"]
    )
    topology: str | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Chips along each axis of the slice, such as 2x4 (v5e, v6e) or 2x2x1 (v5p, v7x); TPUs only.",
    )
    count: Int | None = Field(None, ge=1, le=8, description="GPUs of one machine; h100 only. Default 1.")
    chips_per_host: Int | None = Field(
        None,
        ge=1,
        le=8,
        description="Chips of one machine where a topology exists on two machine shapes: v5e and v6e 2x4 "
        "are one machine of 8 chips (the default) or two of 4.",
    )
    provisioning: Provisioning = section(Provisioning, "How the nodes are obtained.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "topology-required",
            "is required for TPUs",
            lambda a: ACCELERATORS[a.type].kind != "tpu" or a.topology is not None,
            f"!(self.type in {TPUS}) || has(self.topology)",
            fields=("topology", "type"),
            fix="Example: 2x4 for v5e and v6e, 2x2x1 for v5p and v7x",
            hint=lambda a: f"One of {', '.join(_topologies(ACCELERATORS[a.type]))}",
        ),
        Rule(
            "topology-refused",
            "exists only for TPUs",
            lambda a: ACCELERATORS[a.type].kind == "tpu" or a.topology is None,
            f"self.type in {TPUS} || !has(self.topology)",
            fields=("topology", "type"),
            fix="Remove it; GPUs are asked for by count, cpu needs neither",
        ),
        Rule(
            "count-refused",
            "exists only for GPUs",
            lambda a: ACCELERATORS[a.type].kind == "gpu" or a.count is None,
            f"self.type in {GPUS} || !has(self.count)",
            fields=("count", "type"),
            fix="Remove it; TPUs are asked for by topology, cpu needs neither",
        ),
        *(_count_rule(a) for a in _gpus()),
        *(_topology_rule(a) for a in _tpus()),
        Rule(
            "chips-per-host-refused",
            "exists only for TPUs",
            lambda a: ACCELERATORS[a.type].kind == "tpu" or a.chips_per_host is None,
            f"self.type in {TPUS} || !has(self.chipsPerHost)",
            fields=("chipsPerHost", "type"),
            fix="Remove it",
        ),
        *(_chips_rule(a) for a in _tpus()),
        Rule(
            "flex-start-single-host",
            "flexStart gives single machines, and this topology needs several",
            lambda a: a.provisioning.mode != "flexStart" or not a.slice.multi_host,
            f"self.provisioning.mode != 'flexStart' || {_single_host_cel()}",
            fields=("provisioning.mode", "type", "topology", "chipsPerHost", "count"),
            fix="Choose a topology of one machine, or another mode with a Kueue queue",
        ),
    )

    @property
    def chip(self) -> Accelerator:
        """The catalog's entry."""
        return ACCELERATORS[self.type]

    @property
    def slice(self) -> Slice:
        """The machines. Raises UserError where the section is at fault."""
        return slice_of(self.type, self.topology, self.count, self.chips_per_host)

    @property
    def devices(self) -> int:
        """JAX devices of the slice; 1 for cpu."""
        return max(1, self.slice.chips) * self.chip.devices_per_chip


class ServeAccelerator(AcceleratorBase):
    """The slice of one replica."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *AcceleratorBase.rules,
        Rule(
            "serve-single-host",
            "a replica runs on one machine, and this topology needs several",
            lambda a: not a.slice.multi_host,
            _single_host_cel(),
            fields=("topology", "type", "chipsPerHost", "count"),
            fix="Choose a topology of one machine, such as v6e 2x4 with 8 chips per host, and more replicas",
        ),
    )


class Mesh(Section):
    """`auto`, or the devices laid out as `fsdp` times `tp`. `auto` is a mesh with neither."""

    fsdp: Int | None = Field(
        None, ge=1, le=65536, description="Devices that parameters and batch are sharded over."
    )
    tp: Int | None = Field(None, ge=1, le=64, description="Devices that heads and MLP are split over.")

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, data: Any) -> Any:
        if data == "auto":
            return {}
        if isinstance(data, str) or not isinstance(data, (dict, Mesh)):
            raise ValueError("must be auto or {fsdp: N, tp: N}")
        given = {key for key, value in data.items() if value is not None} if isinstance(data, dict) else set()
        if isinstance(data, dict) and len(given & {"fsdp", "tp"}) < 2 and given <= {"fsdp", "tp"}:
            raise ValueError("needs both fsdp and tp, or write auto")
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # A word or a mapping: a structural schema has no union, so the field has no type, and each
        # keyword judges only values of its own kind (`pattern` words, `required` mappings).
        schema = handler.resolve_ref_schema(handler(core))
        schema.pop("type", None)
        schema.update({PRESERVE: True, "pattern": "^auto$", "required": ["fsdp", "tp"]})
        return schema

    @model_serializer
    def _plain(self) -> str | dict[str, int]:
        return "auto" if self.fsdp is None or self.tp is None else {"fsdp": self.fsdp, "tp": self.tp}

    @property
    def auto(self) -> bool:
        return self.fsdp is None


class TrainAccelerator(AcceleratorBase):
    """The slice, and the mesh over its devices."""

    mesh: Mesh = Field(
        default_factory=Mesh.model_construct,
        description="auto, or {fsdp: N, tp: N} with fsdp * tp = the devices of the slice (v7x: two a chip).",
        json_schema_extra={"default": "auto"},
    )
