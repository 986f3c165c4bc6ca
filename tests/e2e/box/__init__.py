"""One real Kubernetes node in a box: kubelet, containerd and runc in namespaces of their own.

    python -m tests.e2e.box install      what it needs from the distribution (Debian, Ubuntu)
    python -m tests.e2e.box up           brings it up, prints how to reach it
    python -m tests.e2e.box down         ends it and what it made

Everything runs in its own mount, network and process namespace. The host keeps its sysctls, firewall
rules, mounts and folders; it gains one veth pair, two routes and a control group, which `down` removes.
Root and Linux only.
"""
