"""Runs a plan's pods as processes on this machine.

The same manifests that a cluster gets are turned into processes: ConfigMaps become files,
volumes become folders below `.tunewright/`, and their mount paths are rewritten wherever a
command, an environment variable or a configuration names them. What differs from a cluster is
written down here and nowhere else: no isolation, no image, no scheduler, and the environment of
the user's shell shows through (credentials, proxies).
"""
