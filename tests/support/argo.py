"""Argo CD's health check of an object, by the Lua that we ship, run by a real Lua."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from lupa.lua51 import LuaRuntime  # the version of Argo CD's interpreter

CONFIG_MAP = Path(__file__).parents[2] / "manifests/argocd/argocd-cm.yaml"
_KEY = "resource.customizations.health.tunewright.dev_"
_LEFT_OUT = ("io", "os", "debug", "string", "math", "coroutine", "python", "require", "dofile", "loadfile")
"""What a check of Argo CD's cannot use."""


def health(body: dict[str, Any]) -> tuple[str, str]:
    """Status and message that Argo CD would show for one of our resources."""
    script = yaml.safe_load(CONFIG_MAP.read_text())["data"][_KEY + body["kind"]]
    lua = LuaRuntime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
    for name in _LEFT_OUT:
        lua.globals()[name] = None
    lua.globals()["obj"] = _table(lua, body)
    found = lua.execute(script)
    return found.status, found.message


def _table(lua: LuaRuntime, value: Any) -> Any:
    """JSON as Argo CD hands it to Lua: lists count from one, null is nil."""
    if isinstance(value, dict):
        return lua.table_from({k: _table(lua, v) for k, v in value.items() if v is not None})
    if isinstance(value, list):
        return lua.table_from([_table(lua, one) for one in value])
    return value
