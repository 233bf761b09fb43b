"""What of a request derendering depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatSettings:
    """The part of a chat or completion request that decides how its ids become deltas.

    ``tools``: OpenAI tools as the request carries them (validated). ``tool_choice``: "none", "auto", "required" or
    the object that names a function; None means auto where there are tools. ``logprobs``: None if not asked
    for, else how many alternatives to show. ``history_tool_calls``: calls in the conversation so far.
    ``tool_call_streaming`` and ``framing_whitespace``: override the server's. ``report_eos``: the stop reason
    names the primary EOS id too, as derender endpoints pass it on; else it is None as chat answers have it.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    return_tokens_as_token_ids: bool = False
    return_token_ids: bool = False
    history_tool_calls: int = 0
    tool_call_streaming: str | None = None
    framing_whitespace: str | None = None
    report_eos: bool = False

    @property
    def named_tool(self) -> str:
        """The function that ``tool_choice`` names ("" if none)."""
        if not isinstance(self.tool_choice, Mapping):
            return ""
        function = self.tool_choice.get("function")
        return str(function.get("name", "")) if isinstance(function, Mapping) else ""

    @property
    def tools_allowed(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forced(self) -> str:
        """ "named" or "required" where the request forces a call, else ""."""
        if not self.tools_allowed:
            return ""
        if self.named_tool:
            return "named"
        return "required" if self.tool_choice == "required" else ""

    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Names of the declared tools, with the JSON schemas of their parameters."""
        found: dict[str, Mapping[str, Any]] = {}
        for tool in self.tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                found[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
        return found
