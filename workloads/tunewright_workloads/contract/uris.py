"""URIs of datasets, models and outputs: which schemes exist and what each one names.

gs://bucket/key     an object or a prefix in Cloud Storage
hf://org/name       a repository on the Hugging Face hub
pvc://claim/path    a path on a PersistentVolumeClaim of the job's namespace
file:///path        a path in the container's file system (on a laptop: on the laptop)
sample://name       data that ships inside the package, for the quickstart and for tests
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from tunewright_workloads.contract.faults import Fault, UserError, nearest, show

SCHEMES = ("gs", "hf", "pvc", "file", "sample")
WRITABLE = ("gs", "pvc", "file")

_URI = re.compile(r"^(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)$", re.DOTALL)
_BUCKET = re.compile(r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$")
_CLAIM = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
_REPO = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")

# The same rules as CEL or OpenAPI patterns need them: one source for both sides.
READ_PATTERN = r"^(gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?|hf://[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/.*)?|pvc://[a-z0-9][-a-z0-9.]*/.+|file:///.+|sample://[a-z0-9][-a-z0-9.]*)$"
WRITE_PATTERN = r"^(gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]/.+|pvc://[a-z0-9][-a-z0-9.]*/.+|file:///.+)$"


@dataclass(frozen=True)
class Uri:
    """A parsed URI. `root` is the bucket, repository or claim ('' for file and sample)."""

    scheme: str
    root: str
    path: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        if self.scheme == "sample":
            return f"sample://{self.path}"
        return f"{self.scheme}://{self.root}/{self.path}" if self.path else f"{self.scheme}://{self.root}"

    def child(self, *parts: str) -> Uri:
        """The URI of something below this one."""
        path = "/".join([self.path.rstrip("/"), *parts]) if self.path else "/".join(parts)
        return Uri(self.scheme, self.root, path)


def parse(text: str, place: str = "uri", *, writable: bool = False) -> Uri:
    """Reads a URI or says what is wrong with it. Raises UserError naming `place`."""
    allowed = WRITABLE if writable else SCHEMES
    forms = ", ".join(f"{s}://" for s in allowed)
    match = _URI.match(text or "")
    if not match:
        raise UserError(
            Fault(place, f"must be a URI with one of the schemes {forms}", show(text), _path_hint(text))
        )
    scheme, rest = match["scheme"], match["rest"]
    if scheme not in allowed:
        near = nearest(scheme, allowed)
        fix = f"Did you mean {near}://?" if near else None
        what = "written to" if writable else "read"
        raise UserError(Fault(place, f"only {forms} can be {what}", show(text), fix))
    if any(part in ("..", ".") for part in rest.split("/")) or "\x00" in rest or "\n" in rest:
        raise UserError(Fault(place, "must not hold '.' or '..' segments or control characters", show(text)))
    if scheme == "file":
        if not rest.startswith("/") or rest.strip("/") == "":
            raise UserError(
                Fault(place, "file:// needs an absolute path below /", show(text), "Write file:///abs/path.")
            )
        return Uri("file", "", rest.rstrip("/"))
    if scheme == "sample":
        if not _CLAIM.match(rest):
            raise UserError(Fault(place, "sample:// needs the name of a shipped sample", show(text)))
        return Uri("sample", "", rest)
    if scheme == "hf":
        parts = rest.strip("/").split("/")
        repo, path = "/".join(parts[:2]), "/".join(parts[2:])
        if not _REPO.match(repo):
            raise UserError(
                Fault(place, "hf:// needs org/name", show(text), "Example: hf://google/gemma-4-31B-it.")
            )
        return Uri("hf", repo, path)
    root, _, path = rest.partition("/")
    path = path.strip("/")
    if scheme == "gs" and not _BUCKET.match(root):
        raise UserError(
            Fault(
                place,
                "gs:// needs a bucket name of 3-222 lower-case letters, digits, '-', '_', '.'",
                show(text),
            )
        )
    if scheme == "pvc" and not _CLAIM.match(root):
        raise UserError(Fault(place, "pvc:// needs the name of a PersistentVolumeClaim", show(text)))
    if not path and (writable or scheme == "pvc"):
        raise UserError(
            Fault(
                place,
                "needs a path below the " + ("bucket" if scheme == "gs" else "claim"),
                show(text),
                f"Write {scheme}://{root}/some/path.",
            )
        )
    return Uri(scheme, root, path)


def local(text: str) -> str:
    """An argument of a command line as a URI: what holds no scheme is a path of this machine."""
    return text if "://" in text or not text else f"file://{os.path.realpath(text)}"


def _path_hint(text: str) -> str | None:
    if not text:
        return None
    if text.startswith(("/", "./", "~")) or "/" in text or text.endswith((".jsonl", ".json", ".parquet")):
        return f"For a local path write file://{text if text.startswith('/') else '/absolute/path'}."
    return None
