"""A ServeEndpoint's children: a Deployment of the server, a Service, and what scales and watches it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

from tunewright_operator.api.endpoint import ServeEndpoint
from tunewright_operator.api.job import FineTuneJob
from tunewright_operator.plan import cost, finetune, monitoring, names, pods, warm
from tunewright_operator.plan.probes import HTTP, Probes
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest, Plan, Stage
from tunewright_operator.plan.volumes import CONFIG, WORK, Volumes
from tunewright_workloads.contract import engine
from tunewright_workloads.contract.configs import ServeConfig
from tunewright_workloads.contract.faults import Fault, UserError, show

PORT = 8000

_PLACES = {
    "accelerator": "spec.accelerator",
    "maxModelLength": "spec.engine.maxModelLength",
    "maxBatchedTokens": "spec.engine.maxBatchedTokens",
    "kvCacheDtype": "spec.engine.kvCacheDtype",
    "extraArgs": "spec.engine.extraArgs",
}
"""Where a user finds what a ServeConfig's field was made from."""


def endpoint(
    resource: ServeEndpoint,
    settings: Settings | None = None,
    job: FineTuneJob | None = None,
    *,
    uri: str | None = None,
    digest: str | None = None,
) -> Plan:
    """The children of a valid ServeEndpoint. Pure.

    job:    the job that `spec.model.fineTuneJobRef` names.
    uri:    where its merged model is, when that is known and the job itself is not.
    digest: of the model; another one makes another revision, which is rolled out.
    Raises UserError with everything that cannot be planned.
    """
    return _Endpoint(resource, settings or Settings(), job, uri, digest).plan()


class _Endpoint:
    def __init__(
        self, resource: ServeEndpoint, settings: Settings, job: FineTuneJob | None, uri: str | None,
        digest: str | None,
    ) -> None:  # fmt: skip
        self.resource, self.spec, self.settings = resource, resource.spec, settings
        self.name = resource.metadata.name
        self.namespace = resource.metadata.namespace or "default"
        self.job, self.digest = job, digest
        self.model = job.spec.model.spec if job else None
        self.uri = self.model_uri(uri)
        self.volumes = Volumes(settings)

    def model_uri(self, known: str | None) -> str:
        found = self.spec.model
        if found.uri is not None:
            return found.uri
        assert found.fine_tune_job_ref is not None
        name = found.fine_tune_job_ref.name
        if self.job is None:
            if known is not None:
                return known
            raise UserError(
                Fault(
                    "spec.model.fineTuneJobRef.name",
                    "names a FineTuneJob that is not known here",
                    show(name),
                    "Put the job into the same file, or use spec.model.uri.",
                )
            )
        if not self.job.spec.output.merge:
            raise UserError(
                Fault(
                    "spec.model.fineTuneJobRef.name",
                    "names a job that publishes no merged model (its spec.output.merge is false)",
                    show(name),
                    "Set spec.output.merge of the job to true.",
                )
            )
        return finetune.merged(self.job)

    def plan(self) -> Plan:
        config, started = self.config()
        self.volumes.check()
        template = self.template(config, started)
        revision = self.revision(config, template)
        served = self.stage(config, template, revision)
        stages = [*self.warm(config, template, started), served]
        asks = Probes(self.resource, self.settings, self.uri, self.model)
        if self.spec.rollout.gate:
            stages.append(asks.gate(config, revision, self.selector(revision)))
        if self.spec.benchmark:
            stages.append(asks.benchmark(revision))
        notes = list(started.notes) if started else []
        if started and started.fit:
            notes.append(f"memory: {started.fit}")
        return Plan(
            "ServeEndpoint",
            self.namespace,
            self.name,
            tuple(stages),
            shared=asks.shared(),
            after=tuple(self.after(served, revision)),
            output=self.uri,
            notes=tuple(notes),
            price=cost.hourly(self.spec.accelerator, self.settings.prices),
        )

    # -- configuration ------------------------------------------------------------------------

    def config(self) -> tuple[ServeConfig, engine.EnginePlan | None]:
        """The workload's configuration, and vLLM's arguments where vLLM serves."""
        spec = self.spec
        chip, rows = spec.accelerator.chip, spec.accelerator.slice
        tensor, data = engine.layout(chip, rows)
        config = ServeConfig(
            endpoint=f"{self.namespace}/{self.name}",
            model=self.volumes.resolve(self.uri, "spec.model.uri"),
            revision=spec.model.revision,
            served_name=self.resource.served_name,
            engine="jax" if spec.small else "vllm",
            accelerator=chip.name,
            tensor_parallel=tensor,
            data_parallel=data,
            max_model_length=spec.engine.max_model_length,
            max_batched_tokens=spec.engine.max_batched_tokens,
            kv_cache_dtype=spec.engine.kv_cache_dtype,
            host="0.0.0.0",
            port=PORT,
            drain_seconds=spec.drain_seconds,
            extra_args=tuple(spec.engine.extra_args),
            work=WORK,
        )
        if spec.small:
            faults = [
                Fault(f"spec.engine.{name}", "is vLLM's, and the engine here is jax", show(value), fix)
                for name, value, fix in (
                    ("maxBatchedTokens", spec.engine.max_batched_tokens, "Remove it."),
                    ("kvCacheDtype", _unless(spec.engine.kv_cache_dtype, "auto"), "Use auto."),
                )
                if value is not None
            ]
            if faults:
                raise UserError(faults)
            return self.cached(config, None), None
        try:
            started = engine.plan(config, self.model)
        except UserError as error:
            raise UserError([_placed(fault) for fault in error.faults]) from None
        return self.cached(config, started), started

    def cached(self, config: ServeConfig, started: engine.EnginePlan | None) -> ServeConfig:
        """With the folder of compiled programs: one for each image, slice and set of arguments."""
        if self.spec.compile_cache is None:
            return config
        mount = self.volumes.mount_claim(self.spec.compile_cache.pvc)
        key = engine.cache_key(self.image, self.spec.accelerator.topology, started) if started else "jax"
        return config.model_copy(update={"compile_cache": f"{mount}/{key}"})

    @property
    def image(self) -> str:
        if self.spec.engine.image:
            engine.refuse_base(self.spec.engine.image, "spec.engine.image")
            return self.spec.engine.image
        if self.spec.small:
            return self.settings.train("cpu")
        return self.settings.serve(self.spec.accelerator.chip.kind)

    # -- manifests ----------------------------------------------------------------------------

    def labels(self, component: str = "serve") -> dict[str, str]:
        return names.labels(names.ENDPOINT, self.name, component)

    def selector(self, revision: str) -> dict[str, str]:
        """What finds the Deployment's pods. blueGreen tells revisions apart; recreate has one at a time."""
        found = {names.ENDPOINT: self.name, names.COMPONENT: "serve"}
        return {**found, names.REVISION: revision} if self.blue_green else found

    def traffic(self, revision: str) -> dict[str, str]:
        """What the Service sends traffic to: with a gate only to the revision that has passed it."""
        return {**self.selector(revision), **({names.REVISION: revision} if self.spec.rollout.gate else {})}

    @property
    def blue_green(self) -> bool:
        return self.spec.rollout.strategy == "blueGreen"

    def template(self, config: ServeConfig, started: engine.EnginePlan | None) -> Manifest:
        spec, chip, rows = self.spec, self.spec.accelerator.chip, self.spec.accelerator.slice
        budgets = engine.budgets(config)
        size = 2.2 * self.model.params / 2**30 if self.model else finetune.UNKNOWN_MODEL_GIB
        remote = self.uri.startswith(("gs://", "hf://")) and not (started and self.uri.startswith("gs://"))
        scratch = (size if remote else 0.0) + 2
        memory = {"cpu": 1.0 + 3 * (size if self.model else 0.0), "tpu": 16.0, "gpu": 16.0}[chip.kind]
        mounted, mounts = self.volumes.render(
            "{config}", scratch_gib=scratch, shared_memory=_SHARED_MEMORY[chip.kind] if started else None
        )
        planned: dict[str, Any] = dict(started.variables) if started else {"JAX_PLATFORMS": "cpu"}
        if spec.model.token_secret_ref:
            planned["HF_TOKEN"] = pods.secret(
                spec.model.token_secret_ref.name, spec.model.token_secret_ref.key
            )
            planned.pop("HF_HUB_OFFLINE", None)
        disk = None if self.settings.scratch_class else f"{math.ceil(scratch)}Gi"

        def probe(period: int, failures: int) -> Manifest:
            return {
                "httpGet": {"path": "/health", "port": HTTP},
                "periodSeconds": period,
                "timeoutSeconds": 5,
                "failureThreshold": failures,
            }

        container: Manifest = {
            "name": "serve",
            "image": self.image,
            "imagePullPolicy": self.settings.pull_policy,
            "command": ["python3", "-m", "tunewright_workloads.serve", "--config", f"{CONFIG}/serve.json"],
            "env": pods.environment(planned, spec.pod_template),
            "ports": [{"name": HTTP, "containerPort": PORT, "protocol": "TCP"}],
            "resources": pods.resources(
                chip, rows, cpu="500m", memory=f"{math.ceil(memory * 1024)}Mi", scratch=disk,
                user=spec.pod_template,
            ),
            "startupProbe": probe(10, math.ceil(budgets.startup / 10)),
            "readinessProbe": probe(5, 3),
            "livenessProbe": {**probe(20, 6), "timeoutSeconds": 10},
            "lifecycle": {"preStop": {"sleep": {"seconds": budgets.pre_stop}}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }  # fmt: skip
        provisioning = spec.accelerator.provisioning
        selector, tolerations = pods.placement(chip, rows, provisioning.mode, provisioning.name)
        annotations = {"tunewright.dev/model-digest": self.digest} if self.digest else {}
        labels = {**self.labels(), names.STAGE: "serve", **_inference_labels(self.model, not spec.small)}
        return pods.pod(
            labels=labels,
            annotations=annotations,
            container=container,
            volumes=mounted,
            selector=selector,
            tolerations=tolerations,
            user=spec.pod_template,
            account=spec.service_account_name,
            grace=budgets.grace,
            restart="Always",
        )

    def revision(self, config: ServeConfig, template: Manifest) -> str:
        """Names what is served and how: ten hex digits."""
        what = [config.model_dump(mode="json"), template, self.digest]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]

    def stage(self, config: ServeConfig, template: Manifest, revision: str) -> Stage:
        """The ConfigMap and the Deployment.

        The ConfigMap has the revision in its name and never changes: a pod that is restarted during
        a rollout still starts as what it was.
        """
        spec = self.spec
        name = names.child(self.name, "serve")
        if self.blue_green:
            name = names.child(self.name, f"serve-{revision}")
        config_map = names.child(self.name, f"serve-{revision}", limit=63)
        labels = {**self.labels(), names.REVISION: revision}
        template = _with_config(template, config_map, labels)
        deployment: Manifest = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "spec": {
                **({} if spec.autoscaling else {"replicas": spec.replicas}),
                "selector": {"matchLabels": self.selector(revision)},
                # No slice is spare: the old pods go before the new ones come.
                "strategy": {"type": "Recreate"},
                "progressDeadlineSeconds": engine.budgets(config).progress_deadline,
                "revisionHistoryLimit": 2,
                "template": template,
            },
        }
        made: Manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config_map, "namespace": self.namespace, "labels": labels},
            "immutable": True,
            "data": {"serve.json": config.text()},
        }
        return Stage("serve", (made, deployment), config)

    def warm(self, config: ServeConfig, template: Manifest, started: engine.EnginePlan | None) -> list[Stage]:
        """What fills the compile cache, where there is one and what it holds takes long to make."""
        if started is None or config.compile_cache is None or self.spec.accelerator.chip.kind == "cpu":
            return []
        rows = self.spec.accelerator.slice
        return [warm.stage(self.name, self.namespace, config, template, rows, self.settings)]

    def after(self, stage: Stage, revision: str) -> list[Manifest]:
        """The Service last of all: it is what moves the traffic to a revision that has passed the gate."""
        spec, selector = self.spec, self.selector(revision)
        target = stage.workload["metadata"]["name"]

        def meta(name: str) -> Manifest:
            return {"name": name, "namespace": self.namespace, "labels": self.labels()}

        made: list[Manifest] = [
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": meta(names.child(self.name, "serve")),
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
            }
        ]
        if spec.autoscaling:
            scale = spec.autoscaling
            made.append(
                {
                    "apiVersion": "autoscaling/v2",
                    "kind": "HorizontalPodAutoscaler",
                    "metadata": meta(names.child(self.name, "serve")),
                    "spec": {
                        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
                        "minReplicas": scale.min,
                        "maxReplicas": scale.max,
                        "metrics": [
                            {
                                "type": "Pods",
                                "pods": {
                                    # GKE, "Serve an LLM using TPUs with vLLM": prometheus.googleapis.com|NAME|gauge.
                                    "metric": {"name": self.settings.hpa_metric},
                                    "target": {
                                        "type": "AverageValue",
                                        "averageValue": str(scale.target_waiting_requests),
                                    },
                                },
                            }
                        ],
                        # A start takes minutes even warm: what was scaled up is kept for a while.
                        "behavior": {
                            "scaleUp": {"stabilizationWindowSeconds": 60},
                            "scaleDown": {"stabilizationWindowSeconds": 600},
                        },
                    },
                }
            )
        if not spec.small:
            made += monitoring.monitors(
                names.child(self.name, "serve"), self.namespace, self.labels(), selector, HTTP, self.settings
            )
        if self.settings.endpoint_picker and not spec.small:
            # Fields of v1 as in kubernetes-sigs/gateway-api-inference-extension, api/v1/inferencepool_types.go.
            # A Gateway is traffic as well: it gets only what has passed the gate.
            made.append(
                {
                    "apiVersion": "inference.networking.k8s.io/v1",
                    "kind": "InferencePool",
                    "metadata": meta(names.child(self.name)),
                    "spec": {
                        "selector": {"matchLabels": self.traffic(revision)},
                        "targetPorts": [{"number": PORT}],
                        "endpointPickerRef": {
                            "name": self.settings.endpoint_picker,
                            "port": {"number": 9002},
                        },
                    },
                }
            )
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": meta(names.child(self.name, limit=63)),
                "spec": {
                    "selector": self.traffic(revision),
                    "ports": [{"name": HTTP, "port": 80, "targetPort": HTTP, "protocol": "TCP"}],
                },
            }
        )
        return made


_SHARED_MEMORY = {"cpu": "2Gi", "tpu": "16Gi", "gpu": "16Gi"}


def _with_config(template: Manifest, config_map: str, labels: dict[str, str]) -> Manifest:
    """The template with the ConfigMap's name, which depends on everything else in it."""
    volumes = [
        {**v, "configMap": {"name": config_map}} if "configMap" in v else v
        for v in template["spec"]["volumes"]
    ]
    meta = template["metadata"]
    return {
        "metadata": {**meta, "labels": {**meta["labels"], **labels}},
        "spec": {**template["spec"], "volumes": volumes},
    }


def _inference_labels(model: Any, vllm: bool) -> dict[str, str]:
    """The labels that GKE's inference dashboards look for."""
    found = {"ai.gke.io/inference-server": "vllm"} if vllm else {}
    return {**found, "ai.gke.io/model": model.name} if model else found


def _unless(value: str, default: str) -> str | None:
    return None if value == default else value


def _placed(fault: Fault) -> Fault:
    head, dot, rest = fault.place.partition(".")
    return replace(fault, place=_PLACES.get(head, head) + dot + rest)
