"""The resources: the single source of the CRDs, their defaults, their rules and their reference.

for resource in api.load(Path("quickstart.yaml"), base=Path(".")): ...
job = api.parse(api.FineTuneJob, object_from_the_api_server)
faults = api.changes(new.spec, old.spec, "spec")
"""

from tunewright_operator.api.conditions import Condition
from tunewright_operator.api.endpoint import ServeEndpoint, ServeEndpointSpec, ServeEndpointStatus
from tunewright_operator.api.job import FineTuneJob, FineTuneJobSpec, FineTuneJobStatus
from tunewright_operator.api.metadata import GROUP, GROUP_VERSION, VERSION
from tunewright_operator.api.reading import KINDS, Resources, load, parse
from tunewright_operator.api.transitions import changes

__all__ = [
    "GROUP",
    "GROUP_VERSION",
    "KINDS",
    "VERSION",
    "Condition",
    "FineTuneJob",
    "FineTuneJobSpec",
    "FineTuneJobStatus",
    "Resources",
    "ServeEndpoint",
    "ServeEndpointSpec",
    "ServeEndpointStatus",
    "changes",
    "load",
    "parse",
]
