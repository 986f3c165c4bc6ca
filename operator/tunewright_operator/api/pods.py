"""What a user may add to the planned pods, and references to other objects of the namespace."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tunewright_operator.api.base import Section
from tunewright_operator.api.rules import Rule, listed
from tunewright_operator.api.values import SUBDOMAIN, Int, Key, Name, Quantity

_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_QUALIFIED = rf"({SUBDOMAIN}/)?{_PART}"
_OURS = "tunewright.dev/"


class Reference(Section):
    """Another object of the same namespace, by name."""

    name: Name = Field(description="Its name.")


class TokenRef(Section):
    """A key of a Secret in the same namespace. The operator never reads it; the kubelet does."""

    name: Name = Field(description="Name of the Secret.", examples=["hf-secret"])
    key: Key = Field("hf_api_token", description="Key in it.")


class KeyRef(Section):
    """A key of a Secret or ConfigMap."""

    name: Name = Field(description="Name of the Secret or ConfigMap.")
    key: Key = Field(description="Key in it.")
    optional: bool = Field(False, description="Start the pod also while it does not exist.")


class EnvSource(Section):
    """Where the value of a variable comes from: exactly one of the two."""

    secret_key_ref: KeyRef | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(None, description="A key of a ConfigMap.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "env-source",
            "needs exactly one of secretKeyRef and configMapKeyRef",
            lambda s: (s.secret_key_ref is None) != (s.config_map_key_ref is None),
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            fields=("secretKeyRef", "configMapKeyRef"),
        ),
    )


class Env(Section):
    """An environment variable of the workload's container."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Rule(
            "env-name",
            "must be letters, digits and '_', not beginning with a digit",
            lambda v: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", v) is not None,
            "self.matches(r'^[A-Za-z_][A-Za-z0-9_]*$')",
        ),
    ] = Field(description="Name of the variable.")
    value: str | None = Field(None, max_length=4096, description="Its value.")
    value_from: EnvSource | None = Field(None, description="Where the value comes from.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "env-value",
            "cannot stand beside valueFrom",
            lambda e: e.value is None or e.value_from is None,
            "!(has(self.value) && has(self.valueFrom))",
            fields=("value", "valueFrom"),
            fix="Remove one of the two",
        ),
    )


class Toleration(Section):
    """As in a Pod."""

    key: str | None = Field(None, max_length=317, description="Key of the taint; empty: all (with Exists).")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="Exists or Equal.")
    value: str | None = Field(None, max_length=63, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; default all."
    )
    toleration_seconds: Int | None = Field(
        None, ge=0, le=2**31 - 1, description="seconds, with effect NoExecute."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "toleration-value",
            "exists only for operator Equal",
            lambda t: t.operator == "Equal" or not t.value,
            "self.operator == 'Equal' || !has(self.value) || self.value == ''",
            fields=("value", "operator"),
            fix="Remove it",
        ),
        Rule(
            "toleration-key",
            "is required for operator Equal",
            lambda t: t.operator == "Exists" or bool(t.key),
            "self.operator == 'Exists' || (has(self.key) && self.key != '')",
            fields=("key", "operator"),
            fix="Give the key of the taint, or set operator: Exists",
        ),
        Rule(
            "toleration-seconds",
            "exists only for effect NoExecute",
            lambda t: t.toleration_seconds is None or t.effect == "NoExecute",
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            fields=("tolerationSeconds", "effect"),
            fix="Remove it",
        ),
        Rule(
            "toleration-impending",
            "must not tolerate the end of the node: no checkpoint would be saved in time",
            lambda t: t.key != "cloud.google.com/impending-node-termination",
            "!has(self.key) || self.key != 'cloud.google.com/impending-node-termination'",
            fields=("key",),
            fix="Remove this toleration",
        ),
    )


def _keys(name: str, field: str) -> tuple[Rule, ...]:
    """Rules about the keys of a map of labels, annotations or node labels."""
    attribute = {"nodeSelector": "node_selector"}.get(field, field)
    qualified = re.compile(_QUALIFIED, re.ASCII)

    def every(test: Callable[[str], bool]) -> Callable[[PodTemplate], bool]:
        return lambda t: all(test(key) for key in getattr(t, attribute))

    return (
        Rule(
            f"{name}-key",
            "keys must be names of Kubernetes, such as team or example.com/team, of at most 63 characters after the /",
            every(lambda k: qualified.fullmatch(k) is not None and len(k.rpartition("/")[2]) <= 63),
            f"self.{field}.all(k, k.matches(r'^{_QUALIFIED}$') && k.matches(r'(^|/)[^/]{{1,63}}$'))",
            fields=(field,),
        ),
        Rule(
            f"{name}-reserved",
            f"keys below {_OURS} are the operator's own",
            every(lambda k: not k.startswith(_OURS)),
            f"self.{field}.all(k, !k.startsWith('{_OURS}'))",
            fields=(field,),
            fix="Choose a prefix of your own",
        ),
    )


def _values(name: str, field: str) -> Rule:
    attribute = {"nodeSelector": "node_selector"}.get(field, field)
    part = re.compile(f"({_PART})?", re.ASCII)
    return Rule(
        f"{name}-value",
        "values must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
        lambda t: all(part.fullmatch(v) for v in getattr(t, attribute).values()),
        f"self.{field}.all(k, self.{field}[k].matches(r'^({_PART})?$'))",
        fields=(field,),
    )


def _resource_names(field: str) -> Rule:
    known = ("cpu", "memory", "ephemeral-storage")
    return Rule(
        f"resources-{field}",
        f"can hold {', '.join(known)}",
        lambda r: set(getattr(r, field)) <= set(known),
        f"self.{field}.all(k, k in {listed(known)})",
        fields=(field,),
        fix="Chips are asked for by spec.accelerator",
    )


class Resources(Section):
    """CPU, memory and scratch space of the workload's container. Chips come from `accelerator`."""

    requests: dict[Annotated[str, Field(max_length=32)], Quantity] = Field(
        default_factory=dict,
        max_length=3,
        description="cpu, memory, ephemeral-storage. Keep cpu small: a large request keeps a TPU machine empty.",
        json_schema_extra={"default": {}},
    )
    limits: dict[Annotated[str, Field(max_length=32)], Quantity] = Field(
        default_factory=dict,
        max_length=3,
        description="cpu, memory, ephemeral-storage.",
        json_schema_extra={"default": {}},
    )

    rules: ClassVar[tuple[Rule, ...]] = (_resource_names("requests"), _resource_names("limits"))


_Map = dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=63)]]


class PodTemplate(Section):
    """What is added to every pod of the resource."""

    labels: _Map = Field(
        default_factory=dict, max_length=32, description="Labels.", json_schema_extra={"default": {}}
    )
    annotations: dict[Annotated[str, Field(max_length=317)], Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=32, description="Annotations.", json_schema_extra={"default": {}}
    )
    node_selector: _Map = Field(
        default_factory=dict,
        max_length=16,
        description="More node labels to run on, beside those that follow from the accelerator.",
        json_schema_extra={"default": {}},
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=16, description="Tolerations.", json_schema_extra={"default": []}
    )
    env: list[Env] = Field(
        default_factory=list,
        max_length=32,
        description="Environment variables.",
        json_schema_extra={
            "default": [],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="CPU, memory and scratch space.",
        json_schema_extra={"default": {}},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *_keys("label", "labels"),
        _values("label", "labels"),
        *_keys("annotation", "annotations"),
        *_keys("node-selector", "nodeSelector"),
        _values("node-selector", "nodeSelector"),
        Rule(
            "node-selector-accelerator",
            "the node labels of the accelerator follow from spec.accelerator",
            lambda t: not any(k.startswith("cloud.google.com/gke-") for k in t.node_selector),
            "self.nodeSelector.all(k, !k.startsWith('cloud.google.com/gke-'))",
            fields=("nodeSelector",),
            fix="Remove the keys below cloud.google.com/gke-",
        ),
        Rule(
            "env-unique",
            "names of variables must be unique",
            lambda t: len({e.name for e in t.env}) == len(t.env),
            fields=("env",),
            offline="the API server says it by the list's map key: Duplicate value",
        ),
    )
