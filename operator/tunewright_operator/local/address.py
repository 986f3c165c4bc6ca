"""Where an endpoint listens on this machine, and whether it answers there."""

from __future__ import annotations

import errno
import socket
import urllib.error
import urllib.request

from tunewright_workloads.contract.faults import Fault, UserError, show


def refuse_address(host: str, port: int | None) -> None:
    """Raises UserError for a host or a port that cannot be served on now."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As servers do: a connection that has just ended keeps no port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES, errno.EPERM):
            fix = "End what listens there, name another, or leave --port out for a free one."
            raise UserError(Fault("--port", f"cannot be served on: {said}", str(port), fix)) from None
        fix = "Write 127.0.0.1, 0.0.0.0 or an address of this machine."
        raise UserError(Fault("--host", f"cannot be served on: {said}", show(host), fix)) from None


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def reachable(host: str) -> str:
    """The address under which this machine reaches what listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def healthy(url: str) -> bool:
    """Whether `url` answers 200 now."""
    # No proxy: the address is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
