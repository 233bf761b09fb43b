"""Parser names of a command line and a loaded checkpoint: what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.derender.parsing.auto import Choice, choose
from proxy.derender.parsing.foreign import Checkpoint
from proxy.derender.parsing.plugins import installed
from proxy.derender.vocabulary import Vocabulary

AUTO = "auto"


def checkpoint_of(tokenizer: Any) -> Checkpoint:
    """What foreign parsers want of a checkpoint, from its transformers tokenizer."""
    template = getattr(tokenizer, "response_template", None)
    if not isinstance(template, Mapping):
        template = (getattr(tokenizer, "init_kwargs", None) or {}).get("response_template")
    return Checkpoint(tokenizer, template if isinstance(template, Mapping) else None)


def resolved(
    reasoning: str | None, tools: str | None, tokenizer: Any, vocabulary: Vocabulary, chat_template: str | None = None
) -> Choice:
    """The parsers that the names select, ``auto`` decided; the explanation is "" where nothing was to decide.

    ``chat_template``: the text that is used in place of the checkpoint's. Raises UnknownFormat.
    """
    if AUTO not in (reasoning, tools):
        return Choice(reasoning, tools, "")
    choice = choose(
        chat_template=_template(tokenizer, chat_template),
        tokens=vocabulary.added,
        response_template=checkpoint_of(tokenizer).response_template,
        registry=installed(),
        reasoning=reasoning == AUTO,
        tools=tools == AUTO,
    )
    return Choice(
        choice.reasoning if reasoning == AUTO else reasoning,
        choice.tools if tools == AUTO else tools,
        choice.explanation,
    )


def _template(tokenizer: Any, given: str | None) -> str | None:
    """The template that requests with tools are rendered by; None where there is none."""
    try:
        return str(tokenizer.get_chat_template(given, tools=[{}]))
    except (ValueError, TypeError, AttributeError):
        return given
