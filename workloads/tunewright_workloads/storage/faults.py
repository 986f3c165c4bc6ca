"""What goes wrong with a place far away: ours to retry, or the user's to change."""

from __future__ import annotations


class StorageError(OSError):
    """A place that should work and did not, after every retry. Ends in `exits.RETRY`, not in 2."""


class LostClaimError(StorageError):
    """Another writer took over while this one was away; nothing more may be written."""
