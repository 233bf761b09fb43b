"""gpt-oss: Harmony messages."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.generators.base import Marker, Tool, Written, calls, dumps, words

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = map(Marker, ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"))
_END, _CALL, _RETURN = map(Marker, ("<|end|>", "<|call|>", "<|return|>"))


class Harmony:
    family = "harmony"
    reasoning_parser = "openai_gptoss"
    tool_parser = "openai"
    markers: tuple[str, ...] = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN)
    special: tuple[str, ...] = markers

    def write(self, rng: random.Random, tools: Sequence[Tool]) -> Written:
        messages: list[list[str]] = []
        made = calls(rng, tools)
        reasoning = words(rng) if rng.random() < 0.7 else ""
        content = words(rng) if not made or rng.random() < 0.3 else ""
        if reasoning:
            messages.append([_CHANNEL, "analysis", _MESSAGE, reasoning, _END])
        if content:
            messages.append([_CHANNEL, rng.choice(("final", "commentary")), _MESSAGE, content, _END])
        for name, given in made:
            kind = rng.choice(((" ", _CONSTRAIN, "json"), (_CONSTRAIN, "json"), (" json",), ()))
            head: tuple[str, ...]
            if rng.random() < 0.5:
                head = (_CHANNEL, f"commentary to=functions.{name}", *kind)
            else:
                head = (f" to=functions.{name}", _CHANNEL, "commentary", *kind)
            messages.append([*head, _MESSAGE, dumps(given, rng), _CALL])
        pieces: list[str] = []
        for number, message in enumerate(messages):
            pieces += [*((_START, "assistant") if number else ()), *message]
        return Written(tuple(pieces[:-1]), (_START, "assistant"), reasoning, content, made)


GENERATORS = (Harmony(),)
