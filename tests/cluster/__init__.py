"""The project's own Kubernetes for tests: built from Go modules, run as plain processes on loopback.

`build` makes the binaries and caches them, `control` runs a control plane from them (or speaks to a
cluster that is already there), `addons` adds JobSet and Kueue to it, and `conftest` hands it to tests.
"""
