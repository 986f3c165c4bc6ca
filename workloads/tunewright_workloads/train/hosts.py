"""Several processes that run one job: who is who, and what they must agree on.

On a TPU slice JAX finds the others by itself (TPU_WORKER_ID, TPU_WORKER_HOSTNAMES). Elsewhere
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say it.
"""

from __future__ import annotations

import os

from tunewright_workloads.contract.faults import Fault, UserError

_RANKS = ("RANK", "JAX_PROCESS_ID", "TPU_WORKER_ID", "JOB_COMPLETION_INDEX")


def rank(hosts: int) -> int:
    """This process's number, known before JAX is imported; 0 when there is one host only.

    The first process writes what all of them would write the same.
    """
    if hosts == 1 and "RANK" not in os.environ:
        return 0
    for name in _RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def join(hosts: int) -> None:
    """Connects the processes of a job. Raises UserError when there are not as many as configured."""
    import jax

    if hosts > 1:
        address, count = os.environ.get("JAX_COORDINATOR_ADDRESS"), os.environ.get("JAX_NUM_PROCESSES")
        if address and count:
            jax.distributed.initialize(address, int(count), rank(hosts))
        else:
            jax.distributed.initialize()
    if jax.process_count() != hosts:
        raise UserError(
            Fault("mesh.hosts", f"must be the number of processes, {jax.process_count()}", str(hosts))
        )


def any_of(flag: bool) -> bool:
    """Whether any process says so; all of them must ask at the same step."""
    import jax

    if jax.process_count() == 1:
        return flag
    import numpy as np
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
