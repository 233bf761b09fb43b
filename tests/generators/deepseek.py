"""DeepSeek: V3 with its fence, V3.1, and the DSML of V3.2, V4 and V4.1."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.generators.base import Call, Marker, Tool, Written, calls, dumps, words
from tests.generators.qwen import THINK, think

_CALLS, _CALL, _SEP = map(Marker, ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"))
_CALL_END, _CALLS_END = map(Marker, ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"))


@dataclass(frozen=True)
class Sections:
    """V3 (``fenced``) and V3.1."""

    family: str
    reasoning_parser: str | None
    tool_parser: str
    fenced: bool
    markers: tuple[str, ...] = (*THINK, _CALLS, _CALL, _SEP, _CALL_END, _CALLS_END)
    special: tuple[str, ...] = ()

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        reasoning, prompt, pieces = think(rng, "")
        made = calls(rng, tools)
        content = words(rng) if not made or rng.random() < 0.4 else ""
        pieces.append(content)
        if made:
            pieces.append(_CALLS)
        for number, (name, given) in enumerate(made):
            pieces += [rng.choice(("", "\n")) if number else "", _CALL]
            if self.fenced:
                pieces += ["function", _SEP, f"{name}\n```json\n{dumps(given, rng)}\n```", _CALL_END]
            else:
                pieces += [name, _SEP, dumps(given, rng), _CALL_END]
        if made:
            pieces.append(_CALLS_END)
        return Written(tuple(pieces), prompt, reasoning, content, made)


@dataclass(frozen=True)
class Dsml:
    """``outer``: the element around calls; ``space``: what stands behind ``｜DSML｜``."""

    family: str
    reasoning_parser: str
    tool_parser: str
    outer: str
    space: str = ""
    markers: tuple[str, ...] = (*THINK, "｜DSML｜")
    special: tuple[str, ...] = ()

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        reasoning, prompt, pieces = think(rng, "")
        made = calls(rng, tools)
        content = words(rng) if not made or rng.random() < 0.4 else ""
        pieces.append(content)
        if made:
            pieces += ["\n\n", *self._tag(self.outer), "\n"]
            for call in made:
                pieces += self._invoke(call, rng)
            pieces += self._tag(self.outer, "</")
        return Written(tuple(pieces), prompt, reasoning, content, made)

    def _tag(self, text: str, begin: str = "<") -> list[str]:
        return [begin, Marker("｜DSML｜"), f"{self.space}{text}>"]

    def _invoke(self, call: Call, rng: random.Random) -> list[str]:
        name, given = call
        if not given and rng.random() < 0.3:
            return [*self._tag(f'invoke name="{name}"/'), "\n"]
        pieces = [*self._tag(f'invoke name="{name}"'), "\n" if given else rng.choice(("\n", "\n\n", ""))]
        for key, item in given.items():
            string = isinstance(item, str)
            pieces += self._tag(f'parameter name="{key}" string="{"true" if string else "false"}"')
            pieces += [item if string else json.dumps(item, ensure_ascii=False), *self._tag("parameter", "</"), "\n"]
        return [*pieces, *self._tag("invoke", "</"), "\n"]


GENERATORS = (
    Sections("deepseek_v3", "deepseek_r1", "deepseek_v3", True),
    Sections("deepseek_v31", "deepseek_v3", "deepseek_v31", False),
    Dsml("deepseek_v32", "deepseek_v3", "deepseek_v32", "function_calls"),
    Dsml("deepseek_v4", "deepseek_v4", "deepseek_v4", "tool_calls"),
    Dsml("deepseek_v41", "deepseek_v41", "deepseek_v41", "calls", " "),
)
