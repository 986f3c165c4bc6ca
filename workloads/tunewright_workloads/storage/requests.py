"""Requests to Cloud Storage: the client, and what its errors mean to whoever reads them.

What a user can change (a permission, a bucket's name, credentials) becomes a UserError that names it;
what passes by itself a StorageError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud import storage as gcs
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from tunewright_workloads.contract.faults import Fault, UserError, show
from tunewright_workloads.contract.uris import Uri
from tunewright_workloads.storage.faults import StorageError

T = TypeVar("T")

_LOGIN = "Check the pod's service account, or run `gcloud auth application-default login`."


def client() -> gcs.Client:
    """With the credentials of this process. Raises UserError where there are none."""
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        from google.auth.credentials import AnonymousCredentials

        return gcs.Client(
            project=os.environ.get("GOOGLE_CLOUD_PROJECT", "test"), credentials=AnonymousCredentials()
        )
    try:
        return gcs.Client()
    except auth.DefaultCredentialsError:
        raise UserError(
            Fault(
                "gs://",
                "there are no Google Cloud credentials",
                None,
                "In a cluster bind the pod's service account to one of Google Cloud (Workload Identity); "
                "on a laptop run `gcloud auth application-default login`.",
            )
        ) from None
    except OSError:  # credentials without a project: objects need none
        return gcs.Client(project="none")


class Calls:
    """Makes one request at a time for one store. place: the field of a configuration that named its URI."""

    def __init__(self, uri: Uri, place: str, client: gcs.Client) -> None:
        self._uri, self._place, self._client = uri, place, client

    def __call__(self, permission: str, work: Callable[[], T], name: str = "") -> T:
        """One request; what a user can change becomes a UserError, what passes a StorageError."""
        place = f"{self._uri}/{name}" if name else str(self._uri)
        try:
            return work()
        except (api.PreconditionFailed, DataCorruption):
            raise
        except api.BadRequest as error:
            if re.search(r"crc32c|checksum|hash", str(error.message), re.IGNORECASE):
                raise DataCorruption(None, f"{place}: {error.message}") from None  # damaged on its way there
            raise StorageError(f"{place}: the server answers 400: {str(error.message)[:200]}") from None
        except (api.Forbidden, api.Unauthorized) as error:
            raise self._denied(place, permission, str(error.message)) from None
        except api.NotFound as error:
            raise self._absent(place, str(error.message)) from None
        except InvalidResponse as error:
            code, text = error.response.status_code, str(getattr(error.response, "text", ""))[:500]
            if code == 412:
                raise api.PreconditionFailed(text) from None
            if code in (401, 403):
                raise self._denied(place, permission, text) from None
            if code == 404:
                raise self._absent(place, text) from None
            raise StorageError(f"{place}: the server answers {code}: {text[:200]}") from None
        except auth.GoogleAuthError as error:
            raise UserError(
                Fault(place, f"the credentials are not accepted: {str(error)[:200]}", None, _LOGIN)
            ) from None
        except (api.GoogleAPIError, OSError) as error:
            if isinstance(error, StorageError | FileNotFoundError):
                raise
            raise StorageError(f"{place}: {type(error).__name__}: {str(error)[:300]}") from None

    def _denied(self, place: str, permission: str, text: str) -> UserError:
        said = re.search(r"(?P<who>\S+@\S+|Anonymous caller) does not have (?P<what>storage\.[\w.]+)", text)
        who = said["who"] if said else _principal(self._client)
        what = said["what"] if said else permission
        role = (
            "roles/storage.objectViewer" if what.endswith((".get", ".list")) else "roles/storage.objectUser"
        )
        return UserError(
            Fault(
                self._place if self._place != "uri" else place,
                f"{who} lacks the permission {what} on {place}",
                None,
                f"Grant it {role} on bucket {self._uri.root}.",
            )
        )

    def _absent(self, place: str, text: str) -> Exception:
        if "bucket" in text.lower():
            rule = "there is no such bucket, or it is another project's"
            return UserError(Fault(self._place, rule, show(f"gs://{self._uri.root}"), "Check the name."))
        return FileNotFoundError(place)


def _principal(client: gcs.Client) -> str:
    credentials = client._credentials
    return str(getattr(credentials, "service_account_email", None) or type(credentials).__name__)
