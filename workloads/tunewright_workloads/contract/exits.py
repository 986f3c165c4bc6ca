"""Exit codes of every workload and of the CLI.

The planned `podFailurePolicy` is written from these constants: a code that is "never retried"
here fails the Job there.
"""

from __future__ import annotations

DONE = 0
RETRY = 1
"""Anything unexpected: retried within `limits.retries`."""

BAD_INPUT = 2
"""The user's input cannot work; never retried. Also what argument parsers use."""

PREEMPTED = 75
"""A signal came, the checkpoint is saved; retried without counting as a failure (EX_TEMPFAIL)."""

KILLED = 137
"""Ended by SIGKILL (128 + 9): out of memory, or the grace period ran out."""

TERMINATED = 143
"""Ended by SIGTERM (128 + 15) before anything was worth saving."""

FATAL = frozenset({BAD_INPUT})
"""Codes after which a retry cannot help."""

INTERRUPTED = frozenset({PREEMPTED, KILLED, TERMINATED})
"""Codes that say "ended from outside"."""
