"""Chat templates: what one reads, and how to apply it without letting a library's words out.

A template is inspected once: whether it iterates over the parts of a message's content (then content stays a list),
whether it knows the ``developer`` role, and which variables it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes as nodes
import jinja2.sandbox

from proxy.errors import RequestError

# what transformers' apply_chat_template does not pass on to the template as it is
_SWITCHES = ("add_generation_prompt", "continue_final_message", "documents")


@dataclass(frozen=True)
class TemplateFacts:
    """``reads_parts``: iterates over content. ``variables``: names it takes from outside."""

    reads_parts: bool
    knows_developer: bool
    variables: frozenset[str]


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``, which templates use to mark what the assistant wrote."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@lru_cache(maxsize=32)  # requests may carry their own template
def inspect_template(template: str) -> TemplateFacts:
    """Facts of a template's text. jinja2.TemplateSyntaxError where it is not one."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    tree = environment.parse(template)
    return TemplateFacts(
        reads_parts=_reads_parts(tree),
        knows_developer='"developer"' in template or "'developer'" in template,
        variables=frozenset(jinja2.meta.find_undeclared_variables(tree)),
    )


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """``node`` without filters, tests and slices: what it is about."""
    while node is not None:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            break
    return node


def _name(node: nodes.Node | None) -> str | None:
    """``a`` or ``ns.a`` as written, for a plain name or an attribute of one."""
    node = _bare(node)
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.NSRef):
        return f"{node.name}.{node.attr}"
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return None


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """All names that are assigned ``name``, a slice of it, or another alias."""
    pairs: list[tuple[str | None, str | None]] = []
    for assign in tree.find_all(nodes.Assign):
        pairs.append((_name(assign.target), _name(assign.node)))
        value = assign.node
        if isinstance(value, nodes.Call) and _name(value.node) == "namespace":
            pairs += [(f"{_name(assign.target)}.{item.key}", _name(item.value)) for item in value.kwargs]
    found = {name}
    while more := {target for target, value in pairs if target and value in found} - found:
        found |= more
    return found


def _is_content(node: nodes.Node | None, messages: set[str]) -> bool:
    node = _bare(node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and _name(node.node) in messages
    if isinstance(node, nodes.Getitem):
        key = node.arg
        return isinstance(key, nodes.Const) and key.value == "content" and _name(node.node) in messages
    return False


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> Iterator[str]:
    """Parameters of ``macro`` that some call gives a message's content."""
    names = [argument.name for argument in macro.args]
    for call in tree.find_all(nodes.Call):
        if _name(call.node) != macro.name:
            continue
        yield from (name for name, value in zip(names, call.args, strict=False) if _is_content(value, messages))
        yield from (item.key for item in call.kwargs if item.key in names and _is_content(item.value, messages))


def _reads_parts(tree: nodes.Template) -> bool:
    lists = _aliases(tree, "messages")
    loops = list(tree.find_all(nodes.For))
    messages = {loop.target.name for loop in loops if _name(loop.iter) in lists and isinstance(loop.target, nodes.Name)}
    if any(_is_content(loop.iter, messages) for loop in loops):
        return True
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        own = list(macro.find_all(nodes.For))
        in_macros |= set(map(id, own))
        parameters = set(_content_parameters(tree, macro, messages))
        if any(isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters for loop in own):
            return True
    return any(
        isinstance(loop.iter, nodes.Name) and loop.iter.name == "content" and id(loop) not in in_macros
        for loop in loops
    )


def facts_of(template: str, *, from_request: bool) -> TemplateFacts:
    """``inspect_template``, a broken template being a RequestError."""
    try:
        return inspect_template(template)
    except (jinja2.TemplateError, RecursionError) as error:
        param = "chat_template" if from_request else None
        raise RequestError("The chat template is not a valid Jinja template.", param=param) from error


def apply_template(
    tokenizer: Any,
    template: str,
    facts: TemplateFacts,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
) -> str:
    """The prompt's text. A template that raises is a RequestError with the template's own message."""
    passed = {name: value for name, value in variables.items() if name in facts.variables or name in _SWITCHES}
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False, **passed)
    except Exception as error:
        own = _own_message(error)
        if own is not None:
            raise RequestError(own, param="messages") from error
        if variables.get("continue_final_message"):
            raise RequestError(
                "`continue_final_message` is set, but the final message does not end the prompt that the chat "
                "template makes.",
                param="continue_final_message",
            ) from error
        raise RequestError("The chat template cannot be applied to this request.", param="messages") from error
    assert isinstance(text, str)
    return text


def _own_message(error: BaseException | None) -> str | None:
    """What the template said with ``raise_exception``; subclasses are Jinja's own complaints."""
    while error is not None:
        if type(error) is jinja2.TemplateError:
            return error.message or ""
        error = error.__cause__ or error.__context__
    return None
