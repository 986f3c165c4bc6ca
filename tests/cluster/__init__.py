"""The project's own Kubernetes for tests: built from Go modules, run as plain processes on loopback.

For whoever writes a test (fixtures of `conftest`):

    cluster, namespace         API server, controllers, scheduler; no kubelet, no add-on
    batch, batch_namespace     the same with JobSet and Kueue, and kubelets that pretend (`simulate`)
    plane                      `cluster`, when it is ours to restart

    nodes.fake_tpu_nodes(cluster, 4, topology="2x2x4")     TPU hosts for the scheduler
    pods.finish(cluster, namespace, name, exit_code=75)    the status that a kubelet would report
    build.binary("helm"), build.binary("kubeconform")      the other tools

Set TUNEWRIGHT_TEST_KUBECONFIG to use a cluster that is already there instead. Tests that need pods which
really run are in `tests/e2e`.
"""
