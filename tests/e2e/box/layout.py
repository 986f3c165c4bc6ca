"""Names, addresses and files of the box: what the host's side and the inside have to agree on."""

from __future__ import annotations

import os
from pathlib import Path

NODE = "box"
BRIDGE = "twbox0"
UPLINK = "twbox0h"
"""The host's end of the veth pair; the other end is named `up0` inside."""

PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
NODE_ADDRESS = "10.244.0.1"
"""The bridge: node, API server, DNS and the pods' gateway. Endpoints may not be loopback addresses."""
HOST_ADDRESS = "10.243.0.1"
INNER_ADDRESS = "10.243.0.2"
UPLINK_NET = "10.243.0.0/30"

API_PORT = 26443
ETCD_PORT = 26379
ETCD_PEER_PORT = 26380
KUBELET_PORT = 26250
KUBELET_HEALTH_PORT = 26248
PROXY_HEALTH_PORT = 26256
PROXY_METRICS_PORT = 26249
DNS_READY_PORT = 26053

URL = f"https://{NODE_ADDRESS}:{API_PORT}"

CGROUPS = Path("/sys/fs/cgroup")
CGROUP = BRIDGE

_SOCKET_LIMIT = 40  # unix sockets below it may have 107 characters in all


def folder() -> Path:
    """Where the box keeps everything. Outside /var and /etc, which it sees through overlays of its own."""
    found = Path(os.environ.get("TUNEWRIGHT_BOX", "/tmp/tunewright-box")).absolute()
    if len(str(found)) > _SOCKET_LIMIT:
        raise ValueError(
            f"TUNEWRIGHT_BOX is {found}: at most {_SOCKET_LIMIT} characters, for unix sockets below it"
        )
    if found.parts[1] in ("var", "etc", "run", "proc", "sys"):
        raise ValueError(
            f"TUNEWRIGHT_BOX is {found}: the box replaces /{found.parts[1]} inside, choose another place"
        )
    if found.exists() and found.stat().st_uid != os.geteuid():
        raise PermissionError(f"{found} belongs to somebody else: set TUNEWRIGHT_BOX to a folder of your own")
    return found
