"""Tunix without what its package imports by the way: reinforcement learning, pandas, TensorBoard, PyTorch.

`import tunix` runs all of its trainers' imports, seconds of a process's start, for one module of
models. Here `tunix` and `tunix.models` are entered as packages that run their own code only when
something asks them for a name; their submodules import as ever.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

_PACKAGES = ("tunix", "tunix.models")


class _Lazy(types.ModuleType):
    """A package whose `__init__` runs when a name is missing."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def install() -> None:
    """Must run before the first import of Tunix; does nothing afterwards, or where there is no Tunix."""
    for name in _PACKAGES:
        if name in sys.modules:
            return
        spec = importlib.util.find_spec(name)
        if spec is None or not isinstance(spec, importlib.machinery.ModuleSpec):
            return
        package = _Lazy(name)
        package.__spec__, package.__package__ = spec, name
        package.__file__, package.__loader__ = spec.origin, spec.loader
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
