"""Specs that must be refused, with the place and the message: one table for both judges.

The offline test reads it with `api.load`, the cluster test sends it to an API server. `server` is
what the API server says where it says it in its own words (types, bounds, enumerations); else it
says `message`, as the rule's text is shared. `offline` is the reason why the API server cannot know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from support.builders import ENDPOINT, JOB, merged


@dataclass(frozen=True)
class Bad:
    name: str
    patch: str
    """YAML, merged into a good resource; `null` removes."""
    place: str
    message: str
    server: str | None = None
    offline: str | None = None
    kind: str = "FineTuneJob"

    @property
    def data(self) -> dict[str, Any]:
        base = JOB if self.kind == "FineTuneJob" else ENDPOINT
        result: dict[str, Any] = merged(base, yaml.safe_load(self.patch))
        return result

    @property
    def refused_by_api_server(self) -> bool:
        return self.offline is None


_MESH = "mesh is a word or a mapping, which CEL cannot look into"

JOBS = (
    # -- what is required
    Bad("a job without a model", "spec: {model: null}", "spec.model", "is required", "spec.model: Required value"),
    Bad("a job without a dataset", "spec: {dataset: null}", "spec.dataset", "is required", "spec.dataset: Required value"),
    Bad("a dataset without training rows", "spec: {dataset: {train: null}}", "spec.dataset.train", "is required", "spec.dataset.train: Required value"),
    Bad("an empty list of training files", "spec: {dataset: {train: []}}", "spec.dataset.train", "must have at least 1 item", "spec.dataset.train in body should have at least 1 items"),
    Bad("a job without an accelerator", "spec: {accelerator: null}", "spec.accelerator", "is required", "spec.accelerator: Required value"),
    Bad("an accelerator without a type", "spec: {accelerator: {type: null}}", "spec.accelerator.type", "is required", "spec.accelerator.type: Required value"),
    Bad("a job without an output", "spec: {output: null}", "spec.output", "is required", "spec.output: Required value"),
    Bad("an output without a URI", "spec: {output: {uri: null, merge: true}}", "spec.output.uri", "is required", "spec.output.uri: Required value"),
    # -- names
    Bad("a name with capitals", "metadata: {name: Support-Bot}", "metadata.name", "must be lower-case letters", "a lowercase RFC 1123 subdomain"),
    Bad("a name with a dot, which no pod can carry", "metadata: {name: support.bot}", "metadata.name", "must be lower-case letters"),
    Bad("a name of 64 characters", f"metadata: {{name: {'a' * 64}}}", "metadata.name", "must be at most 63 characters"),
    # -- unknown fields
    Bad("a misspelt section", "spec: {traning: {epochs: 1}}", "spec.traning", "is not a field. Did you mean training?", 'unknown field "spec.traning"'),
    Bad("a misspelt field", "spec: {training: {learning_rate: 0.1}}", "spec.training.learning_rate", "is not a field. Did you mean learningRate?", 'unknown field "spec.training.learning_rate"'),
    Bad("a field in the wrong section", "spec: {rank: 8}", "spec.rank", "is not a field. It belongs at spec.adapter.rank", 'unknown field "spec.rank"'),
    # -- model
    Bad("a model that nobody knows", "spec: {model: {name: gemma-4-30b}}", "spec.model.name", "must be one of gemma-4-31b", 'Unsupported value: "gemma-4-30b"'),
    Bad("custom without a source", "spec: {model: {name: custom}}", "spec.model.source", "is required for model custom"),
    Bad("the model whose router is wrong", "spec: {model: {name: gemma-4-26b-a4b}}", "spec.model.name", "gemma-4-26b-a4b cannot be trained: its router is wrong"),
    Bad("a source that is a plain path", "spec: {model: {source: /models/gemma}}", "spec.model.source", "must be a URI to read from"),
    Bad("a source on http", "spec: {model: {source: 'https://huggingface.co/google/gemma'}}", "spec.model.source", "must be a URI to read from"),
    Bad("a hub source without a repository", "spec: {model: {source: 'hf://gemma'}}", "spec.model.source", "needs a repository"),
    Bad("a revision with a space", "spec: {model: {revision: 'my branch'}}", "spec.model.revision", "must be a branch, a tag or a commit"),
    Bad("a revision of a bucket", "spec: {model: {source: 'gs://acme/model', revision: v2}}", "spec.model.revision", "is of an hf:// source alone"),
    Bad("a token secret without a name", "spec: {model: {tokenSecretRef: {key: token}}}", "spec.model.tokenSecretRef.name", "is required", "spec.model.tokenSecretRef.name: Required value"),
    Bad("a token secret with a bad name", "spec: {model: {tokenSecretRef: {name: HF_Secret}}}", "spec.model.tokenSecretRef.name", "must be a Kubernetes name"),
    Bad("a token key with a slash", "spec: {model: {tokenSecretRef: {name: hf-secret, key: hf/token}}}", "spec.model.tokenSecretRef.key", "must be a key of a Secret or ConfigMap"),
    # -- dataset
    Bad("a file that is relative, in a cluster", "spec: {dataset: {train: ['file://./train.jsonl']}}", "spec.dataset.train[0]", "needs an absolute path"),
    Bad("a bucket with capitals", "spec: {dataset: {train: ['gs://Acme/train.jsonl']}}", "spec.dataset.train[0]", "needs a bucket"),
    Bad("a path that climbs", "spec: {dataset: {train: ['gs://acme/../other/train.jsonl']}}", "spec.dataset.train[0]", "control characters, or '.' and '..'"),
    Bad("a space in a bucket's path", "spec: {dataset: {train: ['gs://acme/a b.jsonl']}}", "spec.dataset.train[0]", "must not hold spaces (but in file://)"),
    Bad("a claim without a path", "spec: {dataset: {train: ['pvc://claim']}}", "spec.dataset.train[0]", "needs a PersistentVolumeClaim and a path below it"),
    Bad("a sample with a path", "spec: {dataset: {train: ['sample://faq/rows']}}", "spec.dataset.train[0]", "needs the name of a shipped sample"),
    Bad("a string in place of a list of files", "spec: {dataset: {train: 'gs://acme/train.jsonl'}}", "spec.dataset.train", "must be a list", 'spec.dataset.train in body must be of type array: "string"'),
    Bad("a training file twice", "spec: {dataset: {train: ['gs://acme/a.jsonl', 'gs://acme/a.jsonl']}}", "spec.dataset.train", "must not name a file twice"),
    Bad("the same file for training and validation", "spec: {dataset: {validation: ['gs://acme/sft/train.jsonl']}}", "spec.dataset.validation", "must not name a file of dataset.train"),
    Bad("an unknown format", "spec: {dataset: {format: jsonl}}", "spec.dataset.format", "must be one of auto, messages, prompt-completion, text", 'Unsupported value: "jsonl"'),
    Bad("rows longer than any model", "spec: {dataset: {maxLength: 300000}}", "spec.dataset.maxLength", "must be at most 262144", "spec.dataset.maxLength in body should be less than or equal to 262144"),
    Bad("rows longer than the model's context", "spec: {model: {name: gemma-4-tiny}, dataset: {maxLength: 4096}}", "spec.dataset.maxLength", "must not be above what the model can see"),
    Bad("rows that no block divides on TPUs", "spec: {dataset: {maxLength: 3000}}", "spec.dataset.maxLength", "must be a multiple of 128 on TPUs"),
    Bad("packing in words", "spec: {dataset: {packing: 'true'}}", "spec.dataset.packing", "must be true or false", "spec.dataset.packing in body must be of type boolean"),
    # -- adapter
    Bad("a rank of zero", "spec: {adapter: {rank: 0}}", "spec.adapter.rank", "must be at least 1", "spec.adapter.rank in body should be greater than or equal to 1"),
    Bad("a rank that is no whole number", "spec: {adapter: {rank: 8.5}}", "spec.adapter.rank", "must be a whole number", "spec.adapter.rank in body must be of type int64"),
    Bad("an alpha far above the rank", "spec: {adapter: {rank: 4, alpha: 1024}}", "spec.adapter.alpha", "alpha/rank must be at most 64"),
    Bad("a dropout of one", "spec: {adapter: {dropout: 1}}", "spec.adapter.dropout", "must be less than 1", "spec.adapter.dropout in body should be less than 1"),
    Bad("no targets", "spec: {adapter: {targets: []}}", "spec.adapter.targets", "must have at least 1 item", "spec.adapter.targets in body should have at least 1 items"),
    Bad("a target that Gemma has not", "spec: {adapter: {targets: [qkv_proj]}}", "spec.adapter.targets[0]", "must be one of q_proj", 'Unsupported value: "qkv_proj"'),
    Bad("a base in two bits", "spec: {adapter: {quantizeBase: nf2}}", "spec.adapter.quantizeBase", "must be one of none, int8, nf4", 'Unsupported value: "nf2"'),
    Bad("a base in four bits on GPUs", "spec: {output: {uri: 'pvc://claim/bot'}, adapter: {quantizeBase: nf4}, accelerator: {type: h100, topology: null}}", "spec.adapter.quantizeBase", "must be none on GPUs"),
    Bad("k_proj without v_proj", "spec: {adapter: {targets: [q_proj, k_proj]}}", "spec.adapter.targets", "k_proj and v_proj go together"),
    Bad("a target twice", "spec: {adapter: {targets: [q_proj, q_proj]}}", "spec.adapter.targets", "must not name a projection twice", "Duplicate value"),
    # -- training
    Bad("epochs and steps together", "spec: {training: {epochs: 1, steps: 100}}", "spec.training.epochs", "cannot stand beside steps"),
    Bad("epochs of zero", "spec: {training: {epochs: 0}}", "spec.training.epochs", "must be greater than 0", "spec.training.epochs in body should be greater than 0"),
    Bad("a negative number of steps", "spec: {training: {steps: -1}}", "spec.training.steps", "must be at least 1", "spec.training.steps in body should be greater than or equal to 1"),
    Bad("a learning rate in quotes", "spec: {training: {learningRate: '1e-4'}}", "spec.training.learningRate", "must be a number", "spec.training.learningRate in body must be of type number"),
    Bad("a learning rate above one", "spec: {training: {learningRate: 5}}", "spec.training.learningRate", "must be at most 1", "spec.training.learningRate in body should be less than or equal to 1"),
    Bad("a micro batch that does not divide", "spec: {training: {globalBatchSize: 16, microBatchSize: 12}}", "spec.training.microBatchSize", "must divide globalBatchSize"),
    Bad("a warm-up as long as the run", "spec: {training: {steps: 100, warmupSteps: 100}}", "spec.training.warmupSteps", "must be less than steps"),
    Bad("an unknown schedule", "spec: {training: {schedule: cosin}}", "spec.training.schedule", "must be one of cosine, linear, constant", 'Unsupported value: "cosin"'),
    Bad("a seed that no generator takes", "spec: {training: {seed: 4294967296}}", "spec.training.seed", "must be less than 4294967296", "spec.training.seed in body should be less than 4294967296"),
    Bad("a global batch that the slice cannot share", "spec: {training: {globalBatchSize: 7}, accelerator: {topology: 4x4x4}}", "spec.training.globalBatchSize", "must divide over the mesh's fsdp axis", offline="the mesh that auto stands for is found by a search over the catalog"),
    # -- accelerator
    Bad("an accelerator that nobody makes", "spec: {accelerator: {type: v5}}", "spec.accelerator.type", "must be one of cpu, v5e, v5p", 'Unsupported value: "v5"'),
    Bad("a TPU without a topology", "spec: {accelerator: {topology: null}}", "spec.accelerator.topology", "is required for TPUs"),
    Bad("a topology of another generation", "spec: {accelerator: {type: v6e, topology: 2x2x1}}", "spec.accelerator.topology", "must be one of 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16 for type v6e"),
    Bad("a large v5p topology out of order", "spec: {accelerator: {topology: 8x4x4}}", "spec.accelerator.topology", "(or AxBxC of ascending multiples of 4) for type v5p"),
    Bad("a v5p above what exists", "spec: {accelerator: {topology: 32x32x32}}", "spec.accelerator.topology", "(or AxBxC of ascending multiples of 4) for type v5p"),
    Bad("a topology for a cpu", "spec: {accelerator: {type: cpu}}", "spec.accelerator.topology", "exists only for TPUs"),
    Bad("a count for a TPU", "spec: {accelerator: {count: 2}}", "spec.accelerator.count", "exists only for GPUs"),
    Bad("three GPUs", "spec: {output: {uri: 'pvc://claim/bot'}, accelerator: {type: h100, topology: null, count: 3}}", "spec.accelerator.count", "must be one of 1, 2, 4, 8 for type h100"),
    Bad("sixteen GPUs", "spec: {output: {uri: 'pvc://claim/bot'}, accelerator: {type: h100, topology: null, count: 16}}", "spec.accelerator.count", "must be at most 8", "spec.accelerator.count in body should be less than or equal to 8"),
    Bad("chips per host that no machine has", "spec: {accelerator: {type: v6e, topology: 2x4, chipsPerHost: 2}}", "spec.accelerator.chipsPerHost", "must be the chips of one machine of this v6e topology (8 or 4 for 2x4)"),
    Bad("chips per host of a large v5p", "spec: {accelerator: {topology: 8x8x8, chipsPerHost: 8}}", "spec.accelerator.chipsPerHost", "must be the chips of one machine of this v5p topology"),
    Bad("chips per host for GPUs", "spec: {output: {uri: 'pvc://claim/bot'}, accelerator: {type: h100, topology: null, chipsPerHost: 1}}", "spec.accelerator.chipsPerHost", "exists only for TPUs"),
    Bad("a reservation without its name", "spec: {accelerator: {provisioning: {mode: reservation}}}", "spec.accelerator.provisioning.name", "is required for the modes reservation and computeClass"),
    Bad("a name for spot capacity", "spec: {accelerator: {provisioning: {mode: spot, name: mine}}}", "spec.accelerator.provisioning.name", "exists only for the modes reservation and computeClass"),
    Bad("an unknown way to get nodes", "spec: {accelerator: {provisioning: {mode: preemptible}}}", "spec.accelerator.provisioning.mode", "must be one of onDemand, spot, flexStart, reservation, computeClass", 'Unsupported value: "preemptible"'),
    Bad("flex start on several machines", "spec: {accelerator: {topology: 2x2x2, provisioning: {mode: flexStart}}}", "spec.accelerator.provisioning.mode", "flexStart gives single machines"),
    Bad("flex start on two machines where one would do", "spec: {accelerator: {type: v6e, topology: 2x4, chipsPerHost: 4, provisioning: {mode: flexStart}}}", "spec.accelerator.provisioning.mode", "flexStart gives single machines"),
    Bad("flex start for more than seven days", "spec: {accelerator: {provisioning: {mode: flexStart}}, limits: {runTime: 169h}}", "spec.limits.runTime", "flexStart takes the nodes back after 7 days"),
    Bad("a mesh in words", "spec: {accelerator: {mesh: automatic}}", "spec.accelerator.mesh", "must be auto or {fsdp: N, tp: N}", "spec.accelerator.mesh in body should match '^auto$'"),
    Bad("half a mesh", "spec: {accelerator: {mesh: {fsdp: 4}}}", "spec.accelerator.mesh", "needs both fsdp and tp", "spec.accelerator.mesh.tp: Required value"),
    Bad("a mesh of no devices", "spec: {accelerator: {mesh: {fsdp: 0, tp: 4}}}", "spec.accelerator.mesh.fsdp", "must be at least 1", "spec.accelerator.mesh.fsdp in body should be greater than or equal to 1"),
    Bad("a mesh that is not the slice", "spec: {accelerator: {mesh: {fsdp: 8, tp: 1}}}", "spec.accelerator.mesh", "fsdp * tp must be the number of devices of the slice", offline=_MESH),
    Bad("tensor parallelism beyond the kv heads", "spec: {accelerator: {type: v6e, topology: 2x4, mesh: {fsdp: 1, tp: 8}}}", "spec.accelerator.mesh", "must divide every axis of the model that it shards", offline=_MESH),
    Bad("tensor parallelism on GPUs", "spec: {output: {uri: 'pvc://claim/bot'}, accelerator: {type: h100, topology: null, count: 2, mesh: {fsdp: 1, tp: 2}}}", "spec.accelerator.mesh", "tp must be 1 on GPUs", offline=_MESH),
    Bad("an output on GPUs to a bucket", "spec: {accelerator: {type: h100, topology: null}}", "spec.output.uri", "cannot be gs:// on GPUs"),
    Bad("a batch that two GPUs cannot share", "spec: {output: {uri: 'pvc://claim/bot'}, training: {globalBatchSize: 15}, accelerator: {type: h100, topology: null, count: 2}}", "spec.training.globalBatchSize", "must divide over the mesh's fsdp axis", offline="the mesh that auto stands for is found by a search over the catalog"),
    # -- the rest
    Bad("a queue with a bad name", "spec: {queue: {name: 'team a'}}", "spec.queue.name", "must be a Kubernetes name"),
    Bad("a checkpoint never", "spec: {checkpoint: {everySteps: 0}}", "spec.checkpoint.everySteps", "must be at least 1", "spec.checkpoint.everySteps in body should be greater than or equal to 1"),
    Bad("an output to the hub", "spec: {output: {uri: 'hf://acme/support-bot'}}", "spec.output.uri", "must be a URI to write to: gs://, pvc://, file://"),
    Bad("an output to a whole bucket", "spec: {output: {uri: 'gs://acme'}}", "spec.output.uri", "needs a bucket and a path below it"),
    Bad("an output that dies with the pod", "spec: {output: {uri: 'file:///tmp/model'}}", "spec.output.uri", "file:// in a cluster is lost with the pod"),
    Bad("an unknown type of weights", "spec: {output: {dtype: fp8}}", "spec.output.dtype", "must be one of bfloat16, float16, float32, keep", 'Unsupported value: "fp8"'),
    Bad("an evaluation without rows", "spec: {dataset: {validation: null}, evaluation: {maxEvalLoss: 1.2}}", "spec.evaluation", "needs rows to measure on"),
    Bad("an evaluation without a merged model", "spec: {output: {merge: false}, evaluation: {}}", "spec.evaluation", "measures the merged model"),
    Bad("a run time in days", "spec: {limits: {runTime: 2d}}", "spec.limits.runTime", "must be a duration from 1m to 8760h"),
    Bad("a run time of half a minute", "spec: {limits: {runTime: 30s}}", "spec.limits.runTime", "must be a duration from 1m to 8760h"),
    Bad("a budget of nothing", "spec: {limits: {costUSD: 0}}", "spec.limits.costUSD", "must be greater than 0", "spec.limits.costUSD in body should be greater than 0"),
    Bad("negative retries", "spec: {limits: {retries: -1}}", "spec.limits.retries", "must be at least 0", "spec.limits.retries in body should be greater than or equal to 0"),
    Bad("suspend in words", "spec: {suspend: later}", "spec.suspend", "must be true or false", "spec.suspend in body must be of type boolean"),
    Bad("a negative time to live", "spec: {ttlSecondsAfterFinished: -1}", "spec.ttlSecondsAfterFinished", "must be at least 0", "spec.ttlSecondsAfterFinished in body should be greater than or equal to 0"),
    Bad("a service account with a bad name", "spec: {serviceAccountName: Trainer}", "spec.serviceAccountName", "must be a Kubernetes name"),
    # -- pods
    Bad("a label of the operator's own", "spec: {podTemplate: {labels: {tunewright.dev/job: mine}}}", "spec.podTemplate.labels", "keys below tunewright.dev/ are the operator's own"),
    Bad("a label with a bad key", "spec: {podTemplate: {labels: {'team a': x}}}", "spec.podTemplate.labels", "keys must be names of Kubernetes"),
    Bad("a label with a bad value", "spec: {podTemplate: {labels: {team: 'a b'}}}", "spec.podTemplate.labels", "values must be letters, digits"),
    Bad("an annotation with a bad key", "spec: {podTemplate: {annotations: {'/x': y}}}", "spec.podTemplate.annotations", "keys must be names of Kubernetes"),
    Bad("a node label of the accelerator", "spec: {podTemplate: {nodeSelector: {cloud.google.com/gke-spot: 'true'}}}", "spec.podTemplate.nodeSelector", "the node labels of the accelerator follow from spec.accelerator"),
    Bad("a variable with a bad name", "spec: {podTemplate: {env: [{name: 1ST, value: x}]}}", "spec.podTemplate.env[0].name", "must be letters, digits and '_'"),
    Bad("a variable twice", "spec: {podTemplate: {env: [{name: A, value: x}, {name: A, value: y}]}}", "spec.podTemplate.env", "names of variables must be unique", "Duplicate value"),
    Bad("a variable with two values", "spec: {podTemplate: {env: [{name: A, value: x, valueFrom: {secretKeyRef: {name: s, key: k}}}]}}", "spec.podTemplate.env[0].value", "cannot stand beside valueFrom"),
    Bad("a variable from nowhere", "spec: {podTemplate: {env: [{name: A, valueFrom: {}}]}}", "spec.podTemplate.env[0].valueFrom.secretKeyRef", "needs exactly one of secretKeyRef and configMapKeyRef"),
    Bad("a toleration of the end of the node", "spec: {podTemplate: {tolerations: [{key: cloud.google.com/impending-node-termination, operator: Exists}]}}", "spec.podTemplate.tolerations[0].key", "must not tolerate the end of the node"),
    Bad("a toleration without a key", "spec: {podTemplate: {tolerations: [{value: x}]}}", "spec.podTemplate.tolerations[0].key", "is required for operator Equal"),
    Bad("a toleration of a value by existence", "spec: {podTemplate: {tolerations: [{key: a, operator: Exists, value: x}]}}", "spec.podTemplate.tolerations[0].value", "exists only for operator Equal"),
    Bad("a toleration of time without NoExecute", "spec: {podTemplate: {tolerations: [{operator: Exists, tolerationSeconds: 5}]}}", "spec.podTemplate.tolerations[0].tolerationSeconds", "exists only for effect NoExecute"),
    Bad("chips asked for by the pod", "spec: {podTemplate: {resources: {limits: {google.com/tpu: 4}}}}", "spec.podTemplate.resources.limits", "can hold cpu, memory, ephemeral-storage"),
    Bad("memory in a unit that is none", "spec: {podTemplate: {resources: {requests: {memory: 16GB}}}}", "spec.podTemplate.resources.requests.memory", "must be a quantity of Kubernetes"),
    Bad("a negative quantity", "spec: {podTemplate: {resources: {requests: {cpu: -1}}}}", "spec.podTemplate.resources.requests.cpu", "must be a quantity of Kubernetes"),
)  # fmt: skip

ENDPOINTS = (
    Bad("an endpoint without a model", "spec: {model: null}", "spec.model", "is required", "spec.model: Required value"),
    Bad("an endpoint of nothing", "spec: {model: {fineTuneJobRef: null}}", "spec.model", "needs exactly one of fineTuneJobRef and uri"),
    Bad("an endpoint of two models", "spec: {model: {uri: 'gs://acme/models/bot'}}", "spec.model", "needs exactly one of fineTuneJobRef and uri"),
    Bad("a job reference without a name", "spec: {model: {fineTuneJobRef: {name: null}}}", "spec.model.fineTuneJobRef.name", "is required", "spec.model.fineTuneJobRef.name: Required value"),
    Bad("a served name with a space", "spec: {model: {servedName: 'my bot'}}", "spec.model.servedName", "must be letters, digits, '.', '_', '-', ':' and '/'"),
    Bad("an endpoint whose name begins with a digit", "metadata: {name: 1-bot}", "metadata.name", "beginning with a letter"),
    Bad("an endpoint without an accelerator", "spec: {accelerator: null}", "spec.accelerator", "is required", "spec.accelerator: Required value"),
    Bad("a replica on several machines", "spec: {accelerator: {topology: 4x4}}", "spec.accelerator.topology", "a replica runs on one machine"),
    Bad("a replica on two machines where one would do", "spec: {accelerator: {chipsPerHost: 4}}", "spec.accelerator.topology", "a replica runs on one machine"),
    Bad("a mesh for serving", "spec: {accelerator: {mesh: auto}}", "spec.accelerator.mesh", "is not a field", 'unknown field "spec.accelerator.mesh"'),
    Bad("the small engine on a TPU", "spec: {engine: {name: jax}}", "spec.engine.name", "jax is the engine of accelerator cpu only"),
    Bad("an image with a space", "spec: {engine: {image: 'vllm tpu'}}", "spec.engine.image", "must be a container image"),
    Bad("a context of nothing", "spec: {engine: {maxModelLength: 8}}", "spec.engine.maxModelLength", "must be at least 16", "spec.engine.maxModelLength in body should be greater than or equal to 16"),
    Bad("an unknown cache type", "spec: {engine: {kvCacheDtype: int8}}", "spec.engine.kvCacheDtype", "must be one of auto, fp8, bfloat16", 'Unsupported value: "int8"'),
    Bad("an argument that the plan sets", "spec: {engine: {extraArgs: ['--tensor-parallel-size=4']}}", "spec.engine.extraArgs", "must not set --model"),
    Bad("the same argument with underscores", "spec: {engine: {extraArgs: ['--served_model_name', other]}}", "spec.engine.extraArgs", "must not set --model"),
    Bad("arguments for an engine that has none", "spec: {accelerator: {type: cpu, topology: null}, engine: {extraArgs: ['--seed=1']}}", "spec.engine.extraArgs", "is vLLM's, and the engine here is jax"),
    Bad("a batch for an engine that has none", "spec: {accelerator: {type: cpu, topology: null}, engine: {maxBatchedTokens: 64}}", "spec.engine.maxBatchedTokens", "is vLLM's, and the engine here is jax"),
    Bad("a cache type for an engine that has none", "spec: {accelerator: {type: cpu, topology: null}, engine: {kvCacheDtype: fp8}}", "spec.engine.kvCacheDtype", "is vLLM's, and the engine here is jax"),
    Bad("a revision of a job's model", "spec: {model: {revision: v2}}", "spec.model.revision", "is of an hf:// uri alone"),
    Bad("negative replicas", "spec: {replicas: -1}", "spec.replicas", "must be at least 0", "spec.replicas in body should be greater than or equal to 0"),
    Bad("replicas and autoscaling", "spec: {replicas: 3, autoscaling: {max: 4}}", "spec.autoscaling", "cannot stand beside replicas"),
    Bad("autoscaling without an upper end", "spec: {autoscaling: {min: 2}}", "spec.autoscaling.max", "is required", "spec.autoscaling.max: Required value"),
    Bad("autoscaling upside down", "spec: {autoscaling: {min: 3, max: 2}}", "spec.autoscaling.max", "must not be less than min"),
    Bad("autoscaling to zero", "spec: {autoscaling: {min: 0, max: 2}}", "spec.autoscaling.min", "must be at least 1", "spec.autoscaling.min in body should be greater than or equal to 1"),
    Bad("an unknown rollout", "spec: {rollout: {strategy: canary}}", "spec.rollout.strategy", "must be one of recreate, blueGreen", 'Unsupported value: "canary"'),
    Bad("blue and green without a gate", "spec: {rollout: {strategy: blueGreen, gate: false}}", "spec.rollout.gate", "must be true for blueGreen"),
    Bad("a compile cache without a claim", "spec: {compileCache: {}}", "spec.compileCache.pvc", "is required", "spec.compileCache.pvc: Required value"),
    Bad("a drain of two hours", "spec: {drainSeconds: 7200}", "spec.drainSeconds", "must be at most 3600", "spec.drainSeconds in body should be less than or equal to 3600"),
    Bad("a benchmark at rate zero", "spec: {benchmark: {rates: [0]}}", "spec.benchmark.rates[0]", "must be greater than 0", "spec.benchmark.rates[0] in body should be greater than 0"),
)  # fmt: skip

TABLE: tuple[Bad, ...] = (
    *JOBS,
    *(Bad(b.name, b.patch, b.place, b.message, b.server, b.offline, "ServeEndpoint") for b in ENDPOINTS),
)
