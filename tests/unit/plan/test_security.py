"""Every planned pod passes the Pod Security standard `restricted`."""

from __future__ import annotations

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Settings

EVALUATED = {"spec.evaluation": {}, "spec.dataset.validation": ["gs://acme/v.jsonl"]}
PLANS = {
    "tpu": plan.job(specs.job(EVALUATED)),
    "jobset": plan.job(specs.job({"spec.accelerator": {"type": "v5p", "topology": "2x2x4"}})),
    "indexed": plan.job(
        specs.job({"spec.accelerator": {"type": "v5p", "topology": "2x2x4"}}), Settings(jobset=False)
    ),
    "cpu": plan.job(specs.job(specs.TINY)),
    "gpu": plan.job(
        specs.job(
            {
                "spec.model.name": "gemma-4-e4b",
                "spec.accelerator": {"type": "h100"},
                "spec.output.uri": "pvc://claim/bot",
            }
        )
    ),
    "scratch": plan.job(specs.job(), Settings(scratch_class="fast")),
    "serve-tpu": plan.endpoint(specs.endpoint(benchmark={}, compileCache={"pvc": "cache"})),
    "serve-cpu": plan.endpoint(specs.endpoint({"spec.accelerator": {"type": "cpu"}})),
    "serve-gpu": plan.endpoint(specs.endpoint({"spec.accelerator": {"type": "h100", "count": 2}})),
}
PODS = [
    pytest.param(stage.template, id=f"{name}-{stage.name}")
    for name, made in PLANS.items()
    for stage in made.stages
]

RESTRICTED_VOLUMES = {
    "configMap",
    "emptyDir",
    "persistentVolumeClaim",
    "ephemeral",
    "projected",
    "secret",
    "csi",
}


@pytest.mark.parametrize("template", PODS)
def test_restricted(template):
    spec = template["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {k for k, v in spec.items() if v}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= RESTRICTED_VOLUMES
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["privileged"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["runAsNonRoot"] is True
        assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize("template", PODS)
def test_the_root_is_read_only_and_every_place_to_write_is_mounted(template):
    spec = template["spec"]
    volumes = {v["name"] for v in spec["volumes"]}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {m["name"] for m in container["volumeMounts"]} <= volumes
    main = {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert {"/tmp", "/var/tunewright"} <= main


@pytest.mark.parametrize("template", PODS)
def test_no_pod_gets_a_token_that_it_did_not_ask_for(template):
    assert template["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("made", PLANS.values(), ids=PLANS)
def test_every_child_is_labelled_and_in_the_namespace(made):
    for manifest in made.manifests():
        assert manifest["metadata"]["namespace"] == "team"
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "tunewright"
        kind = "tunewright.dev/job" if made.kind == "FineTuneJob" else "tunewright.dev/endpoint"
        assert labels[kind] == "support-bot"


@pytest.mark.parametrize("made", PLANS.values(), ids=PLANS)
def test_no_two_children_have_one_name(made):
    found = [(m["kind"], m["metadata"]["name"]) for m in made.manifests()]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("template", PODS)
def test_libraries_write_where_they_may(template):
    (container,) = template["spec"]["containers"]
    mounts = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    env = {e["name"]: e.get("value") for e in container["env"]}
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        assert any(env[name] == m or env[name].startswith(f"{m}/") for m in mounts)
