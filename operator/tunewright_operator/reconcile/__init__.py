"""The loop: read, plan, apply, write status once.

Kopf watches and nothing else: its events update a slim cache and wake a keyed work queue; workers
decide from what is there, never from which event came. What has to be remembered lives in the
resource's status; the process may be killed between any two writes.
"""
