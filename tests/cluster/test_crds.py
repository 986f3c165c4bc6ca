"""The generated CRDs on a real API server: it accepts them, and it says what `tunewright plan` says."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from support.bad_specs import TABLE, Bad
from support.builders import ENDPOINT, JOB, merged
from support.good_specs import CHANGES, FULL_ENDPOINT, FULL_JOB, GOOD
from tunewright_operator import api
from tunewright_operator.api import crds
from tunewright_operator.api.base import sections
from tunewright_operator.api.schema import structural
from tunewright_workloads.contract.faults import UserError

from .api import ApiError, Cluster

ROOT = Path(__file__).parents[2]
PLURALS = {"FineTuneJob": "finetunejobs", "ServeEndpoint": "serveendpoints"}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster with our CRDs. An API server refuses a CRD whose rules cost too much."""
    cluster.install_crds([ROOT / "manifests" / "crds"])
    return cluster


def collection(kind: str, namespace: str = "default") -> str:
    return f"/apis/{api.GROUP_VERSION}/namespaces/{namespace}/{PLURALS[kind]}"


def refusal(cluster: Cluster, data: dict[str, Any]) -> ApiError:
    """How the API server refuses `data`, asked as kubectl asks: strictly. Nothing is stored."""
    path = collection(data["kind"]) + "?fieldValidation=Strict&dryRun=All"
    with pytest.raises(ApiError) as caught:
        cluster.request("POST", path, data)
    return caught.value


@pytest.mark.parametrize("bad", [b for b in TABLE if b.refused_by_api_server], ids=lambda bad: bad.name)
def test_the_api_server_refuses_with_the_same_message(served: Cluster, bad: Bad) -> None:
    refused = refusal(served, bad.data)
    assert refused.status in (400, 422), refused.message
    assert (bad.server or bad.message) in refused.message
    causes = refused.body.get("details", {}).get("causes", [])
    if bad.server is None and not bad.place.startswith("metadata."):
        # The API server writes the key of a map in brackets.
        assert bad.place in [re.sub(r"\[([a-z-]+)\]", r".\1", cause["field"]) for cause in causes], causes
    # Nothing else is wrong with it: a second complaint would mean that a rule cannot be evaluated.
    assert not [c for c in causes if "evaluating rule" in c["message"]], causes


@pytest.mark.parametrize("bad", [b for b in TABLE if not b.refused_by_api_server], ids=lambda bad: bad.name)
def test_what_only_the_operator_can_know_passes_the_api_server(served: Cluster, bad: Bad) -> None:
    """So that the list of exceptions stays true: what the API server refuses is no exception."""
    served.request("POST", collection(bad.kind) + "?fieldValidation=Strict&dryRun=All", bad.data)


def without_nulls(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_nulls(value) for key, value in node.items() if value is not None}
    return [without_nulls(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
def test_both_judges_accept_what_is_good_and_fill_in_the_same(served: Cluster, data: dict[str, Any]) -> None:
    answer = served.request("POST", collection(data["kind"]) + "?fieldValidation=Strict&dryRun=All", data)
    (ours,) = api.load(json.dumps(data))
    theirs = api.parse(api.KINDS[data["kind"]], answer)
    assert theirs.spec == ours.spec
    # What the API server filled in is what the models say: only fields that follow from others differ.
    wanted = ours.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored = without_nulls(answer["spec"])
    if data["kind"] == "FineTuneJob":
        for part, field in (("training", "epochs"), ("adapter", "alpha")):
            if field not in stored[part]:
                wanted[part].pop(field)
    assert stored == wanted


def test_the_quickstart_is_accepted_by_kubectl(served: Cluster, namespace: str) -> None:
    served.kubectl("apply", "-n", namespace, "-f", ROOT / "examples" / "quickstart.yaml")
    table = served.kubectl("get", "ftj,sep", "-n", namespace)
    assert "faq-bot" in table
    assert "PHASE" in table
    everything = served.kubectl("get", "tunewright", "-n", namespace, "-o", "name")
    assert everything.split() == [
        "finetunejob.tunewright.dev/faq-bot",
        "serveendpoint.tunewright.dev/faq-bot",
    ]


# -- changes -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(served: Cluster) -> Any:
    """One full resource of each kind, in a namespace of its own."""
    namespace = served.create_namespace()
    for data in (FULL_JOB, FULL_ENDPOINT):
        served.request("POST", collection(data["kind"], namespace), data)
    yield namespace
    served.delete_namespace(namespace)


@pytest.mark.parametrize(("data", "change", "place"), [c[:3] for c in CHANGES], ids=[c[3] for c in CHANGES])
def test_a_change_is_judged_alike_by_both(
    served: Cluster, stored: str, data: dict[str, Any], change: dict[str, Any], place: str | None
) -> None:
    kind = api.KINDS[data["kind"]]
    old, new = api.parse(kind, data), api.parse(kind, merged(data, {"spec": change}))
    faults = api.changes(new.spec, old.spec, "spec")
    path = f"{collection(data['kind'], stored)}/{data['metadata']['name']}?dryRun=All"
    if place is None:
        assert faults == []
        served.patch(path, {"spec": change})
        return
    assert [fault.place for fault in faults] == [place]
    with pytest.raises(ApiError) as caught:
        served.patch(path, {"spec": change})
    assert caught.value.status == 422
    causes = caught.value.body["details"]["causes"]
    assert [cause["field"] for cause in causes] == [place], causes
    assert faults[0].rule in causes[0]["message"]


def test_queue_evaluation_and_account_cannot_appear_later(served: Cluster, namespace: str) -> None:
    """A rule at an optional field would not be asked when the field appears."""
    served.request("POST", collection("FineTuneJob", namespace), JOB)
    path = f"{collection('FineTuneJob', namespace)}/support-bot"
    for change in ({"queue": {"name": "q"}}, {"evaluation": {}}, {"serviceAccountName": "other"}):
        with pytest.raises(ApiError, match="cannot be changed"):
            served.patch(path, {"spec": change})
    with pytest.raises(ApiError, match="can only be raised or removed"):
        served.patch(path, {"spec": {"limits": {"costUSD": 10}}})


# -- subresources --------------------------------------------------------------------------------------


def test_status_is_written_apart_from_spec_and_keeps_every_field(served: Cluster, namespace: str) -> None:
    served.request("POST", collection("FineTuneJob", namespace), JOB)
    path = f"{collection('FineTuneJob', namespace)}/support-bot"
    status = {
        "phase": "Training",
        "message": "step 12 of 100",
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": "Unknown",
                "reason": "Training",
                "message": "on its way",
                "lastTransitionTime": "2026-12-01T10:00:00Z",
                "observedGeneration": 1,
            }
        ],
        "progress": {
            "stage": "train",
            "step": 12,
            "totalSteps": 100,
            "epoch": 0.12,
            "loss": 1.5,
            "evalLoss": 1.75,
            "tokensPerSecond": 1000.5,
            "eta": "2026-12-01T12:00:00Z",
        },
        "cost": {"estimatedUSD": 20.5, "spentUSD": 2.25, "chipHours": 0.5},
        "preflight": {"fits": True, "peakHBM": 70.5, "stepSeconds": 3.5, "message": "fits"},
        "checkpoint": {"step": 10, "time": "2026-12-01T10:00:00Z"},
        "attempts": 1,
        "preemptions": 2,
    }
    served.patch(f"{path}/status", {"status": status, "spec": {"suspend": True}})
    found = served.request("GET", path)
    assert found["status"] == status
    assert found["spec"]["suspend"] is False
    parsed = api.parse(api.FineTuneJob, found)
    assert parsed.status.model_dump(mode="json", by_alias=True, exclude_unset=True) == status
    row = served.kubectl("get", "ftj", "support-bot", "-n", namespace, "--no-headers").split()
    assert row[:6] == ["support-bot", "Training", "12", "1.5", "2026-12-01T12:00:00Z", "2.25"]


def test_an_endpoint_is_scaled_by_kubectl_and_not_while_it_scales_itself(
    served: Cluster, namespace: str
) -> None:
    served.request("POST", collection("ServeEndpoint", namespace), ENDPOINT)
    path = f"{collection('ServeEndpoint', namespace)}/support-bot"
    served.patch(f"{path}/status", {"status": {"replicas": 1, "selector": "app=bot"}})
    served.kubectl("scale", "sep/support-bot", "-n", namespace, "--replicas=3")
    assert served.request("GET", path)["spec"]["replicas"] == 3
    scale = served.request("GET", f"{path}/scale")
    assert scale["status"] == {"replicas": 1, "selector": "app=bot"}
    served.patch(path, {"spec": {"replicas": 1, "autoscaling": {"max": 4}}})
    with pytest.raises(Exception, match="cannot stand beside replicas"):
        served.kubectl("scale", "sep/support-bot", "-n", namespace, "--replicas=3")


def test_the_installed_crds_are_the_models_of_this_checkout(served: Cluster) -> None:
    """And the API server pruned nothing of them: every keyword is one that it knows."""
    for wanted in crds.definitions().values():
        name = wanted["metadata"]["name"]
        found = served.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        assert found["spec"]["versions"][0]["schema"] == wanted["spec"]["versions"][0]["schema"]
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions[
            "NonStructuralSchema" if "NonStructuralSchema" in conditions else "Established"
        ] == ("False" if "NonStructuralSchema" in conditions else "True")


# -- both judges, on what nobody wrote by hand ---------------------------------------------------------

POOL: dict[str, list[dict[str, Any]]] = {
    "FineTuneJob": [
        *(
            {"accelerator": {"type": kind, "topology": topology, "chipsPerHost": chips, "count": count}}
            for kind in ("cpu", "v5e", "v5p", "v6e", "v7x", "h100")
            for topology in (None, "1x1", "2x4", "2x2x1", "4x4x8", "4x8x12", "8x4x4", "12x16x64")
            for chips in (None, 1, 4, 8)
            for count in (None, 2)
        ),
        *(
            {"accelerator": {"provisioning": {"mode": mode, "name": name}}}
            for mode in ("onDemand", "spot", "flexStart", "reservation", "computeClass")
            for name in (None, "mine")
        ),
        *({"model": {"name": name}} for name in ("gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-tiny", "custom")),
        *({"model": {"source": uri}} for uri in ("hf://a/b", "hf://a", "gs://abc", "gs://a", "file://x", "s3://a/b")),
        *({"model": {"revision": r}} for r in ("main", "v2")),
        *({"dataset": {"maxLength": length}} for length in (7, 8, 2049, 131073, 262144, 262145)),
        *({"dataset": {"format": form, "lossOn": loss}} for form in ("auto", "text") for loss in ("assistant", "all")),
        *({"dataset": {"validation": files}} for files in ([], ["gs://acme/sft/train.jsonl"], ["pvc://a/b"])),
        *({"adapter": {"rank": rank, "alpha": alpha}} for rank in (1, 16, 513) for alpha in (None, 0, 0.5, 64, 65, 1024)),
        *({"adapter": {"targets": t}} for t in (["q_proj"], ["k_proj"], ["k_proj", "v_proj"], ["v_proj", "o_proj"])),
        *({"training": {"epochs": e, "steps": s}} for e in (None, 0.5, 0) for s in (None, 0, 1, 100)),
        *({"training": {"warmupSteps": w}} for w in (0, 1, 99, 100)),
        *({"training": {"globalBatchSize": 16, "microBatchSize": m}} for m in (1, 3, 8, 16, 32)),
        *({"evaluation": e} for e in (None, {}, {"maxEvalLoss": 0}, {"maxEvalLoss": 1.5})),
        *({"output": {"merge": m, "uri": u}} for m in (True, False) for u in ("gs://abc/x", "gs://abc", "pvc://c/x", "file:///x", "gs://abc//")),
        *({"limits": {"runTime": t}} for t in ("1m", "59s", "168h", "168h1s", "8760h", "8760h1m", "1h1h", "", "5")),
        *({"queue": {"name": n}} for n in ("a", "a.b", "-a", "A", "a" * 254)),
        *({"podTemplate": {"labels": {k: v}}} for k in ("a", "a/b", "A/b", "a/", "b" * 64, "tunewright.dev/x") for v in ("", "x", "-x")),
        *({"podTemplate": {"resources": {"requests": {k: v}}}} for k in ("cpu", "gpu") for v in (1, -1, "1", "1Gi", "1GB", "")),
        *({"podTemplate": {"tolerations": [{"key": k, "operator": o, "value": v}]}} for k in (None, "", "a") for o in ("Exists", "Equal") for v in (None, "", "x")),
        *({"podTemplate": {"env": [{"name": n, "value": "x"}]}} for n in ("A", "_a1", "1a", "a-b", "")),
    ],
    "ServeEndpoint": [
        *(
            {"accelerator": {"type": kind, "topology": topology, "chipsPerHost": chips}}
            for kind in ("cpu", "v5e", "v5p", "v6e", "v7x", "h100")
            for topology in (None, "1x1", "2x4", "2x2x1", "4x4", "4x4x4")
            for chips in (None, 4, 8)
        ),
        *({"model": {"uri": uri}} for uri in ("gs://acme/m", "sample://a")),
        {"model": {"fineTuneJobRef": None}},
        *({"model": {"servedName": n}} for n in ("a", "a/b:c", "-a", "a-", "a b", "a" * 129)),
        *({"engine": {"name": n, "extraArgs": a}} for n in ("auto", "vllm", "jax") for a in ([], ["--seed=1"], ["--port"], ["-tp", "4"], ["--portable"], ["--Model"])),
        *({"engine": {"name": n, "kvCacheDtype": k, "maxBatchedTokens": b}} for n in ("auto", "vllm") for k in ("auto", "fp8") for b in (None, 8)),
        *({"model": {"revision": r}} for r in ("main", "v2")),
        *({"replicas": n} for n in (-1, 0, 1, 2)),
        *({"autoscaling": {"min": lo, "max": hi}} for lo in (None, 0, 1, 3) for hi in (None, 1, 3)),
        *({"rollout": {"strategy": s, "gate": g}} for s in ("recreate", "blueGreen") for g in (True, False, None)),
        *({"benchmark": {"rates": r}} for r in ([], [1], [0.5, 2], [0])),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", POOL)
def test_both_judges_agree_on_random_specs(served: Cluster, kind: str) -> None:
    """Each is one to three fragments of the pool on a good resource; seeded, so the same at every run."""
    draw = random.Random(4)
    apart = {
        rule.name
        for part in sections(api.KINDS[kind])
        for rule in getattr(part[1], "rules", ())
        if rule.offline
    }
    schema = structural(api.KINDS[kind])["properties"]["spec"]["properties"]
    nulls = [
        (s, f)
        for s, part in schema.items()
        for f, p in part.get("properties", {}).items()
        if p.get("nullable")
    ]
    path = collection(kind) + "?fieldValidation=Strict&dryRun=All"
    accepted = 0
    for _ in range(400):
        data = copy.deepcopy(JOB if kind == "FineTuneJob" else ENDPOINT)
        for fragment in draw.sample(POOL[kind], draw.randint(1, 3)):
            data = merged(data, {"spec": fragment})
        section, field = draw.choice(nulls)
        if draw.random() < 0.3 and isinstance(data["spec"].get(section), dict):
            data["spec"][section][field] = None
        try:
            served.request("POST", path, data)
            theirs = set()
        except ApiError as refused:
            assert refused.status == 422, refused.message
            causes = refused.body["details"]["causes"]
            assert not [c for c in causes if "evaluating rule" in c["message"]], (data, causes)
            theirs = {re.sub(r"\[([^\]]*[^\]\d][^\]]*)\]", "", cause["field"]) for cause in causes}
        try:
            api.load(json.dumps(data))
            ours = set()
        except UserError as refused:
            ours = {
                fault.place.split(": ")[-1] for fault in refused.faults if not _named(fault.rule, kind, apart)
            }
        assert bool(ours) == bool(theirs), (data["spec"], ours, theirs)
        accepted += not ours
        if len(ours) == len(theirs) == 1 and not any("Map" in place for place in theirs):
            (mine,), (other,) = ours, theirs
            assert mine.startswith(other) or other.startswith(mine), (data["spec"], ours, theirs)
    assert 20 < accepted < 380  # a pool of good or of bad ones alone would prove nothing


def _named(text: str, kind: str, names: set[str]) -> bool:
    """Whether a fault's text is that of one of the rules of these names."""
    return any(
        rule.text == text and rule.name in names
        for _, part in sections(api.KINDS[kind])
        for rule in getattr(part, "rules", ())
    )


# -- as tools use them -----------------------------------------------------------------------------------


def largest() -> dict[str, Any]:
    """A job with as much as every bound allows: the rules' cost at run time is bounded too."""

    def files(kind: str) -> list[str]:
        return [f"gs://{'b' * 60}/{kind}/{i:02}/{'x' * 930}.jsonl" for i in range(64)]

    keys = [f"{'d' * 60}.{'e' * 60}.example.com/{'k' * 60}{i:03}" for i in range(32)]
    labels = dict.fromkeys(keys, "v" * 63)
    return merged(
        FULL_JOB,
        {
            "metadata": {"name": "n" * 63},
            "spec": {
                "model": {"source": f"gs://{'b' * 60}/{'x' * 950}", "revision": None},
                "dataset": {"train": files("train"), "validation": files("validation")},
                "output": {"uri": f"gs://{'b' * 60}/{'x' * 950}"},
                "podTemplate": {
                    "labels": labels,
                    "annotations": dict.fromkeys(keys, "v" * 4096),
                    "nodeSelector": dict(list(labels.items())[:16]),
                    "tolerations": [
                        {"key": key, "operator": "Equal", "value": "v" * 63} for key in keys[:16]
                    ],
                    "env": [{"name": f"{'E' * 120}{i:03}", "value": "v" * 4096} for i in range(32)],
                },
            },
        },
    )


def test_the_largest_job_is_judged_within_the_budget_also_when_it_changes(
    served: Cluster, namespace: str
) -> None:
    data = largest()
    api.load(json.dumps(data))
    served.request("POST", collection("FineTuneJob", namespace) + "?fieldValidation=Strict", data)
    path = f"{collection('FineTuneJob', namespace)}/{data['metadata']['name']}"
    served.patch(path, {"spec": {"suspend": True}})
    with pytest.raises(ApiError) as caught:
        served.patch(path, {"spec": {"dataset": {"train": data["spec"]["dataset"]["train"][:-1]}}})
    assert [c["field"] for c in caught.value.body["details"]["causes"]] == ["spec.dataset"]


@pytest.mark.parametrize("way", ["--server-side", "--server-side=false"])
def test_applying_the_same_file_again_changes_nothing(served: Cluster, namespace: str, way: str) -> None:
    """What GitOps tools do every few minutes; a default that differs would be a diff for ever."""
    names = {}
    for i, data in enumerate(GOOD.values()):
        one = copy.deepcopy(data)
        one["metadata"]["name"] = f"bot-{i}"
        path = f"{collection(one['kind'], namespace)}/bot-{i}"
        served.kubectl("apply", way, "-n", namespace, "-f", "-", stdin=json.dumps(one))
        before = served.request("GET", path)["metadata"]
        served.kubectl("apply", way, "-n", namespace, "-f", "-", stdin=json.dumps(one))
        after = served.request("GET", path)["metadata"]
        names[path] = (before["resourceVersion"], after["resourceVersion"], after["generation"])
    assert all(before == after and generation == 1 for before, after, generation in names.values()), names


def test_kubectl_explains_the_fields(served: Cluster) -> None:
    page = served.kubectl("explain", "finetunejob.spec.accelerator.topology")
    assert "Chips along each axis of the slice" in page
    page = served.kubectl("explain", "sep.spec.rollout")
    assert "How a new model replaces the old one." in page
