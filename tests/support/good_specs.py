"""Specs that must be accepted, and changes to them with the place that refuses them (None: allowed)."""

from __future__ import annotations

from typing import Any

import yaml

from support.builders import ENDPOINT, JOB, merged

FULL_JOB: dict[str, Any] = merged(
    JOB,
    yaml.safe_load("""
spec:
  model: {source: 'hf://google/gemma-4-31B-it', revision: main, tokenSecretRef: {name: hf-secret, key: hf_api_token}}
  dataset: {format: auto, maxLength: 3072, overlong: drop, packing: true, lossOn: assistant}
  adapter: {rank: 64, alpha: 64, dropout: 0.0, targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], quantizeBase: none}
  training: {epochs: 1, globalBatchSize: 16, learningRate: 1.0e-4, schedule: cosine, warmupSteps: 100, weightDecay: 0.0, maxGradNorm: 1.0, remat: auto, seed: 42}
  accelerator: {type: v5p, topology: 2x2x1, mesh: auto, provisioning: {mode: spot}}
  queue: {name: tpu-team-a}
  checkpoint: {everySteps: 50, keep: 3}
  output: {uri: 'gs://acme/models/support-bot', merge: true, dtype: bfloat16}
  evaluation: {maxEvalLoss: 1.2}
  limits: {runTime: 12h, costUSD: 200, retries: 3}
  suspend: false
  ttlSecondsAfterFinished: 604800
  serviceAccountName: trainer
  podTemplate: {labels: {}, annotations: {}, tolerations: [], env: []}
"""),
)
FULL_ENDPOINT: dict[str, Any] = merged(
    ENDPOINT,
    yaml.safe_load("""
spec:
  engine: {image: null, maxModelLength: 16384, maxBatchedTokens: 4096, kvCacheDtype: fp8, extraArgs: []}
  replicas: 1
  rollout: {strategy: recreate, gate: true}
  compileCache: {pvc: vllm-cache}
  drainSeconds: 120
  benchmark: {}
"""),
)
GOOD = {
    "a job with the required fields alone": JOB,
    "a job with every field": FULL_JOB,
    "a job with a mesh in numbers": merged(JOB, {"spec": {"accelerator": {"mesh": {"fsdp": 2, "tp": 2}}}}),
    "a job with explicit nulls": {**JOB, "spec": {**JOB["spec"], "queue": None, "training": {"steps": None}}},
    "an endpoint with explicit nulls": {
        **ENDPOINT,
        "spec": {
            **ENDPOINT["spec"],
            "engine": {"image": None, "maxModelLength": None},
            "autoscaling": None,
            "podTemplate": {"tolerations": [{"operator": "Exists", "key": None}]},
        },
    },
    "a large v5p": merged(
        JOB, {"spec": {"accelerator": {"topology": "8x8x12"}, "training": {"globalBatchSize": 384}}}
    ),
    "two GPUs": merged(
        {**JOB, "spec": {**JOB["spec"], "accelerator": {"type": "h100", "count": 2}}},
        {"spec": {"output": {"uri": "pvc://claim/bot"}}},
    ),
    "two machines of v6e by choice": merged(
        JOB, {"spec": {"accelerator": {"type": "v6e", "topology": "2x4", "chipsPerHost": 4}}}
    ),
    "flex start on one machine": merged(
        JOB,
        {
            "spec": {
                "accelerator": {"type": "v6e", "topology": "2x4", "provisioning": {"mode": "flexStart"}},
                "limits": {"runTime": "168h"},
            }
        },
    ),
    "a reservation by name": merged(
        JOB, {"spec": {"accelerator": {"provisioning": {"mode": "reservation", "name": "mine"}}}}
    ),
    "an endpoint with the required fields alone": ENDPOINT,
    "an endpoint with every field": FULL_ENDPOINT,
    "an endpoint that scales itself": merged(ENDPOINT, {"spec": {"autoscaling": {"min": 1, "max": 4}}}),
    "vLLM on a cpu": merged(
        {**ENDPOINT, "spec": {**ENDPOINT["spec"], "accelerator": {"type": "cpu"}}},
        {"spec": {"engine": {"name": "vllm", "extraArgs": ["--seed=1"]}}},
    ),
}

JOB_CHANGES: dict[str, tuple[dict[str, Any], str | None]] = {
    "suspend": ({"suspend": True}, None),
    "a time to live": ({"ttlSecondsAfterFinished": 60}, None),
    "a higher budget": ({"limits": {"costUSD": 300}}, None),
    "no budget at all": ({"limits": {"costUSD": None}}, None),
    "a longer run time in other words": ({"limits": {"runTime": "721m"}}, None),
    "more retries": ({"limits": {"retries": 4}}, None),
    "a lower budget": ({"limits": {"costUSD": 100}}, "spec.limits.costUSD"),
    "a shorter run time": ({"limits": {"runTime": "11h59m"}}, "spec.limits.runTime"),
    "fewer retries": ({"limits": {"retries": 2}}, "spec.limits.retries"),
    "another model": (
        {"model": {"name": "gemma-4-e4b", "source": "hf://google/gemma-4-E4B-it"}},
        "spec.model",
    ),
    "more training files": ({"dataset": {"train": ["gs://acme/a.jsonl"]}}, "spec.dataset"),
    "another rank": ({"adapter": {"rank": 32}}, "spec.adapter"),
    "another learning rate": ({"training": {"learningRate": 0.001}}, "spec.training"),
    "another slice": ({"accelerator": {"topology": "2x2x2"}}, "spec.accelerator"),
    "another mesh": ({"accelerator": {"mesh": {"fsdp": 2, "tp": 2}}}, "spec.accelerator"),
    "another queue": ({"queue": {"name": "other"}}, "spec.queue"),
    "no queue": ({"queue": None}, "spec.queue"),
    "fewer checkpoints": ({"checkpoint": {"keep": 1}}, "spec.checkpoint"),
    "another output": ({"output": {"uri": "gs://acme/other"}}, "spec.output"),
    "no evaluation": ({"evaluation": None}, "spec.evaluation"),
    "another service account": ({"serviceAccountName": "other"}, "spec.serviceAccountName"),
    "no service account": ({"serviceAccountName": None}, "spec.serviceAccountName"),
    "another label": ({"podTemplate": {"labels": {"team": "a"}}}, "spec.podTemplate"),
}
ENDPOINT_CHANGES: dict[str, tuple[dict[str, Any], str | None]] = {
    "more replicas": ({"replicas": 2}, None),
    "autoscaling": ({"autoscaling": {"max": 3}}, None),
    "another model": ({"model": {"fineTuneJobRef": {"name": "other"}}}, None),
    "another rollout": ({"rollout": {"strategy": "blueGreen"}}, None),
    "another slice": ({"accelerator": {"topology": "2x2"}}, "spec.accelerator"),
    "another engine": ({"engine": {"maxModelLength": 8192}}, "spec.engine"),
    "no compile cache": ({"compileCache": None}, "spec.compileCache"),
    "another drain": ({"drainSeconds": 10}, "spec.drainSeconds"),
    "no benchmark": ({"benchmark": None}, "spec.benchmark"),
}
CHANGES = [
    *((FULL_JOB, change, place, f"job: {name}") for name, (change, place) in JOB_CHANGES.items()),
    *(
        (FULL_ENDPOINT, change, place, f"endpoint: {name}")
        for name, (change, place) in ENDPOINT_CHANGES.items()
    ),
]
