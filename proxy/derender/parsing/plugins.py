"""Formats of other packages: the entry points ``derender_proxy.formats``.

An entry point names a format, a sequence of formats, or a module with ``FORMATS`` ::

    [project.entry-points."derender_proxy.formats"]
    acme = "acme_formats.chat"

Its names may not be those of a format that is there already.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from proxy.derender.parsing.foreign import ForeignFormat
from proxy.derender.parsing.registry import (
    JointFormat,
    ReasoningFormat,
    Registry,
    ToolFormat,
    UnknownFormat,
    builtin,
    names_of,
)

GROUP = "derender_proxy.formats"

_KINDS = (ReasoningFormat, ToolFormat, JointFormat, ForeignFormat)


class BadPlugin(UnknownFormat):
    """A package's formats that cannot be used; names the entry point."""


def extended(registry: Registry, found: Iterable[EntryPoint]) -> Registry:
    """A registry with the formats of ``registry`` and those of the entry points. Raises BadPlugin."""
    out = Registry()
    out.add(*registry.formats())
    for point in sorted(found, key=lambda point: (point.name, point.value)):
        try:
            formats = _formats(point.load())
        except Exception as error:
            raise BadPlugin(f"plugin {point.name} ({point.value}): {error}") from error
        for item in formats:
            reasoning, tools = names_of(item)
            taken = [*(n for n in reasoning if n in out.reasoning), *(n for n in tools if n in out.tools)]
            if taken:
                raise BadPlugin(f"plugin {point.name} ({point.value}): there is a format {taken[0]!r} already")
            out.add(item)
    return out


def _formats(loaded: Any) -> list[Any]:
    if not isinstance(loaded, _KINDS):
        loaded = getattr(loaded, "FORMATS", loaded)
    formats = [loaded] if isinstance(loaded, _KINDS) else list(loaded)
    for item in formats:
        if not isinstance(item, _KINDS):
            raise TypeError(f"{item!r} is no format")
    return formats


@cache
def installed() -> Registry:
    """The formats of this package and of every installed plugin."""
    return extended(builtin(), entry_points(group=GROUP))
