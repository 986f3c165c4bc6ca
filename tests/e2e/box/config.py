"""The configuration files of the box's components."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml

from . import layout, needs

PAUSE = "localhost/pause:1"

_CONTAINERD = Template("""\
version = 3
root = "$folder/containerd/root"
state = "$folder/containerd/state"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "$folder/containerd/c.sock"
[ttrpc]
  address = "$folder/containerd/t.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "$pause"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE, as in many virtual machines, runc cannot lower a score and dies with
  # "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "$runc"
        Root = "$folder/containerd/runc"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$plugins"]
    conf_dir = "$folder/cni"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.internal.v1.opt"]
  path = "$folder/containerd/opt"
""")

# The order of the directives is the binary's own; a name outside the cluster does not exist.
_DNS = Template("""\
.:53 {
  bind $address
  ready 127.0.0.1:$ready
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $folder/dns.kubeconfig
    pods insecure
    ttl 1
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
""")


def write(folder: Path) -> None:
    """Writes every file; the certificates and kubeconfigs that they name are made elsewhere."""
    for name in ("containerd", "cni", "cni-data", "pods", "kubelet", "log", "box"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "containerd" / "config.toml").write_text(
        _CONTAINERD.substitute(folder=folder, pause=PAUSE, runc=needs.command("runc"), plugins=needs.CNI)
    )
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_network(folder)))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder)))
    (folder / "proxy.yaml").write_text(yaml.safe_dump(_proxy(folder)))
    (folder / "Corefile").write_text(
        _DNS.substitute(folder=folder, address=layout.NODE_ADDRESS, ready=layout.DNS_READY_PORT)
    )
    (folder / "resolv.conf").write_text("")  # pods ask the box's DNS and nobody else


def _network(folder: Path) -> Mapping[str, Any]:
    subnet = layout.PODS.removesuffix(".0/24")
    # No default route: a pod reaches the cluster and the host's end of the veth pair, nothing else.
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "cni-data"),
        "ranges": [[{"subnet": layout.PODS, "rangeStart": f"{subnet}.10", "gateway": layout.NODE_ADDRESS}]],
        "routes": [{"dst": layout.SERVICES}, {"dst": layout.UPLINK_NET}],
    }
    bridge = {
        "type": "bridge",
        "bridge": layout.BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": layout.BRIDGE, "plugins": [bridge]}


def _kubelet(folder: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.NODE_ADDRESS,
        "port": layout.KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": layout.KUBELET_HEALTH_PORT,
        "healthzBindAddress": "127.0.0.1",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd/c.sock",
        "tlsCertFile": str(folder / "pki" / "kubelet.crt"),
        "tlsPrivateKeyFile": str(folder / "pki" / "kubelet.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder / "pki" / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.CGROUP}",
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "registerNode": True,
        "resolvConf": str(folder / "resolv.conf"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [layout.NODE_ADDRESS],
        "podLogsDir": str(folder / "pods"),
        "volumePluginDir": str(folder / "kubelet" / "plugins"),
        # The disk is the host's: what else fills it is no reason to evict pods or images.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.inodesFree": "0%",
        },
        "nodeStatusUpdateFrequency": "5s",
        # Pods see a changed Secret or ConfigMap at their next sync: within seconds, not the default minute.
        "syncFrequency": "5s",
        "maxOpenFiles": 20000,
    }


def _proxy(folder: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": "127.0.0.1",
        "healthzBindAddress": f"127.0.0.1:{layout.PROXY_HEALTH_PORT}",
        "metricsBindAddress": f"127.0.0.1:{layout.PROXY_METRICS_PORT}",
        "clientConnection": {"kubeconfig": str(folder / "proxy.kubeconfig")},
        "mode": "nftables",
        "clusterCIDR": layout.PODS,
        "hostnameOverride": layout.NODE,
        "nodePortAddresses": [f"{layout.NODE_ADDRESS}/32"],
        # These are settings of the whole kernel, which is the host's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
        # The default of 1 s refuses connections for as long after a rollout.
        "nftables": {"minSyncPeriod": "100ms"},
    }
