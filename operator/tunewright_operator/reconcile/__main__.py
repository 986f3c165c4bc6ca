"""`python -m tunewright_operator.reconcile`: runs the operator until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tunewright_operator.reconcile import credentials, logs, options
from tunewright_operator.reconcile.metrics import Metrics
from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import UserError


@contextmanager
def _without_kubernetes() -> Iterator[None]:
    """Kopf imports every model of the `kubernetes` client where it is installed, to recognise its
    objects and to log in by it: 20 MB for what nobody uses here."""
    hidden = sys.modules.get("kubernetes")
    sys.modules["kubernetes"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden is None:
            del sys.modules["kubernetes"]
        else:
            sys.modules["kubernetes"] = hidden


async def _run(chosen: options.Options) -> None:
    with _without_kubernetes():
        import kopf

        from tunewright_operator import handlers  # noqa: F401  (its decorators register the handlers)
        from tunewright_operator.reconcile.quiet import NoMemories

    reload = partial(credentials.load, chosen.kubeconfig)
    memo = kopf.Memo(options=chosen, reload=reload, credentials=await reload(), metrics=Metrics())
    await kopf.operator(
        standalone=True,
        clusterwide=not chosen.namespaces,
        namespaces=list(chosen.namespaces),
        liveness_endpoint=chosen.liveness or None,
        memories=NoMemories(),
        memo=memo,
    )


def main() -> int:
    try:
        chosen = options.read()
    except (UserError, ValueError) as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    logs.configure(chosen.level)
    try:
        asyncio.run(_run(chosen))
    except credentials.NoClusterError as error:
        logging.getLogger(__name__).error("no cluster: %s", error)
        return exits.BAD_INPUT
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
