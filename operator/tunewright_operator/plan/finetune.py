"""A FineTuneJob's children: train, merge and evaluate, each a Job with its configuration."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from tunewright_operator.api.job import FineTuneJob, FineTuneJobSpec
from tunewright_operator.plan import cost, memory, monitoring, names, network, pods, progress
from tunewright_operator.plan.jobs import Rules, workload
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest, Plan, Stage
from tunewright_operator.plan.volumes import CONFIG, PROGRESS, WORK, Volumes
from tunewright_workloads.contract import meshes
from tunewright_workloads.contract.accelerators import Accelerator, Slice, accelerator, slice_of
from tunewright_workloads.contract.configs import (
    AdapterConfig,
    Config,
    DatasetConfig,
    EvaluateConfig,
    MergeConfig,
    MeshConfig,
    ModelSource,
    Schedule,
    TrainConfig,
)
from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.contract.lineage import MANIFEST

MERGED = "merged"
GRACE = {"train": 120, "merge": 30, "evaluate": 30}
"""Seconds between SIGTERM and SIGKILL. Training saves its adapter in them; on spot nodes the
machine gives 15-20 s whatever stands here."""

GIB = 2**30
UNKNOWN_MODEL_GIB = 20.0
"""Scratch for a custom model, whose size is known to nobody before its config.json is read."""

OPERATOR_FIELDS = {
    "limits.costUSD": "compared with the cost that the operator adds up; the Job is then ended",
    "ttlSecondsAfterFinished": "the operator deletes the FineTuneJob; the Jobs' own TTL would make it "
    "create them again",
}
"""Fields of the spec that no child shows, and what uses them."""


def job(resource: FineTuneJob, settings: Settings | None = None) -> Plan:
    """The children of a valid FineTuneJob. Pure.

    Raises UserError with everything that cannot be planned.
    """
    return _Job(resource, settings or Settings()).plan()


def merged(resource: FineTuneJob) -> str:
    """URI of the merged model that a job publishes."""
    return f"{resource.spec.output.uri.rstrip('/')}/{MERGED}"


class _Job:
    def __init__(self, resource: FineTuneJob, settings: Settings) -> None:
        self.spec: FineTuneJobSpec = resource.spec
        self.resource, self.settings = resource, settings
        self.name = resource.metadata.name
        self.namespace = resource.metadata.namespace or "default"
        self.chip: Accelerator = self.spec.accelerator.chip
        self.rows: Slice = self.spec.accelerator.slice
        self.account = self.spec.service_account_name or names.child(self.name, "job")

    def plan(self) -> Plan:
        spec = self.spec
        faults: list[Fault] = []
        stages = []
        for build in [self.train, *([self.merge] if spec.output.merge else []),
                      *([self.evaluate] if spec.evaluation else [])]:  # fmt: skip
            try:
                stages.append(build())
            except UserError as error:
                faults += [f for f in error.faults if f not in faults]
        if faults:
            raise UserError(faults)
        estimate = memory.check(spec)
        return Plan(
            "FineTuneJob",
            self.namespace,
            self.name,
            tuple(stages),
            shared=(
                *self.own_account(),
                *progress.objects(
                    progress.config_map(self.name), self.namespace, self.labels("progress"), self.account
                ),
                network.policy(self.name, self.namespace, self.labels("network"), self.metrics_port),
            ),
            output=merged(self.resource) if spec.output.merge else spec.output.uri.rstrip("/"),
            deadline=spec.limits.run_seconds,
            notes=(estimate,) if estimate else (),
            price=cost.hourly(spec.accelerator, self.settings.prices),
        )

    # -- stages -------------------------------------------------------------------------------

    def train(self) -> Stage:
        spec, volumes = self.spec, Volumes(self.settings)
        output = volumes.resolve(spec.output.uri, "spec.output.uri", write=True)
        config = TrainConfig(
            job=f"{self.namespace}/{self.name}",
            model=self.model(volumes),
            dataset=self.dataset(volumes),
            adapter=AdapterConfig(
                rank=spec.adapter.rank,
                alpha=spec.adapter.alpha,
                dropout=spec.adapter.dropout,
                targets=tuple(spec.adapter.targets),
                quantize_base=spec.adapter.quantize_base,
            ),
            training=Schedule(
                epochs=spec.training.epochs,
                steps=spec.training.steps,
                global_batch_size=spec.training.global_batch_size,
                micro_batch_size=spec.training.micro_batch_size,
                learning_rate=spec.training.learning_rate,
                schedule=spec.training.schedule,
                warmup_steps=spec.training.warmup_steps,
                weight_decay=spec.training.weight_decay,
                max_grad_norm=spec.training.max_grad_norm or None,
                remat=spec.training.remat,
                seed=spec.training.seed,
            ),
            mesh=self.mesh(),
            compute_dtype=self.compute_dtype,
            checkpoint_every=spec.checkpoint.every_steps,
            checkpoint_keep=spec.checkpoint.keep,
            output=output,
            work=WORK,
            progress=PROGRESS,
            metrics_port=self.metrics_port,
        )
        return self.stage(
            "train", config, volumes, chip=self.chip, rows=self.rows, artifact=f"{output}/checkpoints",
            memory_gib=self.host_memory(), scratch_gib=self.base_gib() + 2, queued=True,
        )  # fmt: skip

    def merge(self) -> Stage:
        spec, volumes = self.spec, Volumes(self.settings)
        output = volumes.resolve(spec.output.uri, "spec.output.uri", write=True)
        config = MergeConfig(
            job=f"{self.namespace}/{self.name}",
            model=self.model(volumes),
            # The JAX program leaves Orbax checkpoints, the PyTorch program its adapter in PEFT's format.
            adapter=f"{output}/adapter" if self.settings.torch(self.chip.kind) else output,
            output=f"{output}/{MERGED}",
            adapter_output=None if self.settings.torch(self.chip.kind) else f"{output}/adapter",
            dtype=spec.output.dtype,
            work=WORK,
            progress=PROGRESS,
        )
        cpu = accelerator("cpu")
        found = self.spec.model.spec
        # The merge itself holds 300 MB. The gate's probes come from a pass over the finished model with
        # one layer in memory (bfloat16, twice), a matrix of it and a slice of the vocabulary in float32.
        layer = 2.0
        if found:
            D, F = found.embed, max(found.hidden, found.wide_hidden or 0)
            heads = max(
                found.heads * found.head_dim + found.local_kv_heads * found.head_dim,
                found.heads * found.global_head_dim + found.global_kv_heads * found.global_head_dim,
            )
            layer = (4 * D * (2 * heads + 3 * F) + 4 * D * F + 6 * 16384 * D) / GIB
        return self.stage(
            "merge", config, volumes, chip=cpu, rows=slice_of("cpu"),
            artifact=f"{output}/{MERGED}/{MANIFEST}", memory_gib=1.4 + layer,
            scratch_gib=self.base_gib() + min(8.0, 1 + self.size_gib()), queued=False,
        )  # fmt: skip

    def evaluate(self) -> Stage:
        spec, volumes = self.spec, Volumes(self.settings)
        assert spec.evaluation is not None
        output = volumes.resolve(spec.output.uri, "spec.output.uri", write=True)
        devices = spec.accelerator.devices
        config = EvaluateConfig(
            job=f"{self.namespace}/{self.name}",
            model=f"{output}/{MERGED}",
            dataset=self.dataset(volumes),
            mesh=self.mesh(),
            batch_size=devices * math.ceil(8 / devices),
            compute_dtype=self.compute_dtype,
            max_eval_loss=spec.evaluation.max_eval_loss,
            work=WORK,
            progress=PROGRESS,
        )
        return self.stage(
            "evaluate", config, volumes, chip=self.chip, rows=self.rows, artifact=None,
            memory_gib=self.host_memory(), scratch_gib=2 + (self.size_gib() if output.startswith("gs://") else 0.0), queued=True,
        )  # fmt: skip

    # -- parts of configurations --------------------------------------------------------------

    def model(self, volumes: Volumes) -> ModelSource:
        found = self.spec.model
        uri = volumes.resolve(found.uri, "spec.model.source")
        return ModelSource(name=found.name, source=uri, revision=found.revision)

    def dataset(self, volumes: Volumes) -> DatasetConfig:
        found = self.spec.dataset

        def all_of(uris: list[str], place: str) -> tuple[str, ...]:
            return tuple(volumes.resolve(u, f"spec.dataset.{place}[{i}]") for i, u in enumerate(uris))

        return DatasetConfig(
            train=all_of(found.train, "train"),
            validation=all_of(found.validation, "validation"),
            format=found.format,
            max_length=found.max_length,
            overlong=found.overlong,
            packing=found.packing,
            loss_on=found.loss_on,
            thinking=found.thinking,
        )

    def mesh(self) -> MeshConfig:
        """`auto` is decided here where the catalog knows the model, by the workload for a custom one."""
        wanted = self.spec.accelerator.mesh
        fsdp, tp = wanted.fsdp, wanted.tp
        if self.chip.kind == "gpu":
            fsdp, tp = self.spec.accelerator.devices, 1
        elif wanted.auto and self.spec.model.spec is not None:
            devices = self.spec.accelerator.devices
            fsdp, tp = meshes.layouts(self.spec.model.spec, devices, self.spec.training.rows)[0]
        return MeshConfig(
            accelerator=self.chip.name,
            topology=self.spec.accelerator.topology,
            hosts=self.rows.hosts,
            fsdp=fsdp,
            tp=tp,
            provisioning=self.spec.accelerator.provisioning.mode,
        )

    @property
    def compute_dtype(self) -> Any:
        return "float32" if self.chip.kind == "cpu" else "bfloat16"

    @property
    def metrics_port(self) -> int | None:
        """Where training serves metrics: nowhere unless somebody scrapes them. The PyTorch program has none."""
        served = monitoring.watched(self.settings) and not self.settings.torch(self.chip.kind)
        return monitoring.PORT if served else None

    def monitors(self, stage: str) -> tuple[Manifest, ...]:
        selector = {names.JOB: names.label(self.name), names.STAGE: stage}
        if self.rows.multi_host:  # the first host speaks for all
            selector[names.INDEX] = "0"
        return monitoring.monitors(
            names.child(self.name, stage), self.namespace, self.labels(stage), selector, monitoring.METRICS,
            self.settings,
        )  # fmt: skip

    # -- sizes --------------------------------------------------------------------------------

    def size_gib(self) -> float:
        """The weights in 16 bits."""
        found = self.spec.model.spec
        return UNKNOWN_MODEL_GIB if found is None else 1.1 * found.params * 2 / GIB

    def base_gib(self) -> float:
        """What the base takes on the scratch disk: nothing when it is mounted."""
        remote = self.spec.model.uri.startswith(("hf://", "gs://"))
        return self.size_gib() if remote else 0.0

    def host_memory(self) -> float:
        """GiB of host memory: on a CPU the model is there too, in f32."""
        if self.chip.kind == "cpu":
            return 1.0 + 3 * 2 * (self.size_gib() if self.spec.model.spec else 0.0)
        return 8.0

    def own_account(self) -> tuple[Manifest, ...]:
        """A ServiceAccount that may write progress and nothing else, for a job that names none."""
        if self.spec.service_account_name:
            return ()
        return (progress.account(self.account, self.namespace, self.labels("progress")),)

    # -- manifests ----------------------------------------------------------------------------

    def labels(self, component: str) -> dict[str, str]:
        return names.labels(names.JOB, self.name, component)

    def stage(
        self, name: str, config: Config, volumes: Volumes, *, chip: Accelerator, rows: Slice,
        artifact: str | None, memory_gib: float, scratch_gib: float, queued: bool,
    ) -> Stage:  # fmt: skip
        """One Job with its ConfigMap."""
        volumes.check()
        spec = self.spec
        labels = {**self.labels(name), names.STAGE: name}
        text = config.text()
        config_map: Manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": names.child(self.name, name),
                "namespace": self.namespace,
                "labels": labels,
            },
            "immutable": True,
            "data": {f"{name}.json": text},
        }
        mounted, mounts = volumes.render(
            config_map["metadata"]["name"],
            scratch_gib=scratch_gib,
            shared_memory="16Gi" if chip.kind == "gpu" else None,  # NCCL
        )
        torch = name == "train" and self.settings.torch(chip.kind)
        image = self.settings.train("gpu" if torch else chip.kind)
        relay, token = progress.sidecar(progress.config_map(self.name), image, self.settings.pull_policy)
        planned: dict[str, Any] = {"JAX_PLATFORMS": "tpu,cpu" if chip.kind == "tpu" else "cpu"}
        if spec.model.token_secret_ref:
            ref = spec.model.token_secret_ref
            planned["HF_TOKEN"] = pods.secret(ref.name, ref.key)
        disk = None if self.settings.scratch_class else f"{math.ceil(scratch_gib)}Gi"
        module = "gpu" if torch else name
        container: Manifest = {
            "name": name,
            "image": image,
            "imagePullPolicy": self.settings.pull_policy,
            "command": ["python3", "-m", f"tunewright_workloads.{module}", "--config", f"{CONFIG}/{name}.json"],
            "env": pods.environment(planned, spec.pod_template),
            "resources": pods.resources(
                chip, rows, cpu="500m", memory=f"{math.ceil(memory_gib * 1024)}Mi", scratch=disk,
                user=spec.pod_template,
            ),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }  # fmt: skip
        scraped = self.metrics_port if name == "train" else None
        if scraped is not None:
            container["ports"] = [{"name": monitoring.METRICS, "containerPort": scraped, "protocol": "TCP"}]
        provisioning = spec.accelerator.provisioning
        selector, tolerations = (
            pods.placement(chip, rows, provisioning.mode, provisioning.name)
            if queued
            else pods.placement(chip, rows, "onDemand", None)
        )
        template = pods.pod(
            labels=labels,
            annotations={
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "tunewright.dev/config": hashlib.sha256(text.encode()).hexdigest()[:16],
            },
            container=container,
            volumes=[*mounted, token],
            selector=selector,
            tolerations=tolerations,
            user=spec.pod_template,
            account=self.account,
            grace=GRACE[name],
            restart="Never",
            sidecars=[relay],
        )
        rules = Rules(
            retries=spec.limits.retries,
            suspend=spec.suspend,
            queue=spec.queue.name if queued and spec.queue else None,
            repairable=chip.kind == "tpu",
        )
        made, create_only = workload(
            self.name, name, self.namespace, labels, template, rows, rules, self.settings
        )
        monitors = self.monitors(name) if scraped is not None else ()
        return Stage(name, (config_map, *monitors, *made), config, artifact, create_only)
