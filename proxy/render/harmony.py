"""Prompts of gpt-oss models, rendered in code with openai_harmony (package oss-harmony, the extra ``harmony``).

The order and the channels are those of vLLM 0.33, compared in tests/render.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from proxy.errors import RequestError

EFFORTS = ("low", "medium", "high")
_VOCABULARY = "o200k_base.tiktoken"


def available() -> bool:
    """Whether the optional library is installed."""
    try:
        import openai_harmony  # noqa: F401
    except ImportError:
        return False
    return True


class Harmony:
    """Renders conversations to token ids. ``date``: the conversation's start, as the system message tells it."""

    def __init__(self, tokenizer: Any, *, date: str | None = None) -> None:
        """ImportError without the library. The vocabulary is rebuilt from ``tokenizer``, so nothing is downloaded."""
        import openai_harmony as harmony

        self._lib = harmony
        self._date = date
        if "TIKTOKEN_ENCODINGS_BASE" in os.environ:
            self._encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
            return
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, _VOCABULARY).write_bytes(tiktoken_file(tokenizer.get_vocab()))
            os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
            try:
                self._encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
            finally:
                del os.environ["TIKTOKEN_ENCODINGS_BASE"]

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, reasoning_effort: str | None
    ) -> list[int]:
        """Token ids up to the head of the assistant's answer. RequestError where harmony has no way to say it."""
        if reasoning_effort is not None and reasoning_effort not in EFFORTS:
            raise RequestError(
                f"reasoning_effort={reasoning_effort!r} is not supported by Harmony. Supported values are: "
                f"{', '.join(reversed(EFFORTS))}.",
                param="reasoning_effort",
            )
        rest = messages
        instructions = None
        if messages[0]["role"] in ("system", "developer"):
            instructions, rest = _text(messages[0].get("content")), messages[1:]
        conversation = [self._system(reasoning_effort)]
        if instructions or tools:
            conversation.append(self._developer(instructions, tools))
        names = {
            call.get("id"): call["function"]["name"] for message in rest for call in message.get("tool_calls") or ()
        }
        for message in rest:
            conversation += self._turn(message, names)
        config = self._lib.RenderConversationConfig(auto_drop_analysis=False)
        ids = self._encoding.render_conversation_for_completion(
            self._lib.Conversation.from_messages(_without_old_analysis(conversation)),
            self._lib.Role.ASSISTANT,
            config=config,
        )
        return self._recipients_first(list(ids))

    def _message(self, role: Any, content: Any) -> Any:
        return self._lib.Message.from_role_and_content(role, content)

    def _parts(self, role: Any, message: dict[str, Any]) -> Any:
        """Each part is tokenized by itself, as harmony does."""
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else content
        texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
        return self._lib.Message.from_role_and_contents(role, [self._lib.TextContent(text=text) for text in texts])

    def _system(self, effort: str | None) -> Any:
        content = self._lib.SystemContent.new()
        if effort is not None:
            content = content.with_reasoning_effort(getattr(self._lib.ReasoningEffort, effort.upper()))
        date = self._date or datetime.datetime.now().strftime("%Y-%m-%d")
        return self._message(self._lib.Role.SYSTEM, content.with_conversation_start_date(date))

    def _developer(self, instructions: str | None, tools: list[dict[str, Any]] | None) -> Any:
        content = self._lib.DeveloperContent.new()
        if instructions is not None:
            content = content.with_instructions(instructions)
        if tools:
            content = content.with_function_tools(
                [
                    self._lib.ToolDescription.new(
                        name=tool["function"]["name"],
                        description=tool["function"]["description"] or "",
                        parameters=tool["function"]["parameters"],
                    )
                    for tool in tools
                ]
            )
        return self._message(self._lib.Role.DEVELOPER, content)

    def _turn(self, message: dict[str, Any], names: dict[Any, str]) -> list[Any]:
        role = message["role"]
        text = _text(message.get("content"))
        if role in ("system", "developer"):
            return [] if text is None else [self._developer(text, None)]
        if role == "tool":
            name = names.get(message.get("tool_call_id"), "")
            author = self._lib.Author.new(self._lib.Role.TOOL, f"functions.{name}")
            said = self._lib.Message.from_author_and_content(author, text or "")
            return [said.with_channel("commentary").with_recipient("assistant")]
        if role == "assistant":
            return self._assistant(message, text)
        return [self._parts(self._lib.Role.USER, message)]

    def _assistant(self, message: dict[str, Any], text: str | None) -> list[Any]:
        assistant = self._lib.Role.ASSISTANT
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        calls = message.get("tool_calls")
        thought = [self._message(assistant, reasoning).with_channel("analysis")] if reasoning else []
        if not calls:
            return thought + ([self._parts(assistant, message).with_channel("final")] if text else [])
        turns = [self._message(assistant, text).with_channel("commentary")] if text else []
        turns += thought
        for call in calls:
            arguments = call["function"].get("arguments") or ""
            written = json.dumps(arguments) if isinstance(arguments, dict) else arguments
            turn = self._message(assistant, written).with_channel("commentary")
            turns.append(turn.with_recipient(f"functions.{call['function']['name']}").with_content_type("json"))
        return turns

    def _recipients_first(self, ids: list[int]) -> list[int]:
        """Heads of past calls as gpt-oss writes them: ``assistant to=f<|channel|>commentary json``.

        oss-harmony writes ``assistant<|channel|>commentary to=f <|constrain|>json`` since 0.0.10, which the model
        is apt to echo with the recipient in both places.
        """
        encode, decode = self._encoding.encode, self._encoding.decode
        start, channel, constrain, message = (
            encode(mark, allowed_special="all")[0]
            for mark in ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
        )
        result: list[int] = []
        last = max((index for index, token in enumerate(ids) if token == message), default=-1)
        at = 0
        while at < len(ids):
            if ids[at] != start or at > last:
                result.append(ids[at])
                at += 1
                continue
            end = ids.index(message, at)
            head = ids[at + 1 : end]
            if channel in head and constrain in head[head.index(channel) :]:
                author, rest = head[: head.index(channel)], head[head.index(channel) + 1 :]
                where, kind = rest[: rest.index(constrain)], rest[rest.index(constrain) + 1 :]
                name, _, recipient = decode(where).partition(" to=")
                if decode(author) == "assistant" and recipient.endswith(" ") and name and kind:
                    head = [
                        *encode(f"assistant to={recipient[:-1]}"),
                        channel,
                        *encode(f"{name} {decode(kind)}"),
                    ]
            result += [start, *head, message]
            at = end + 1
        return result


def _text(content: str | list[Any] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts = [part if isinstance(part, str) else part.get("text") for part in content]
    known = [text for text in texts if text is not None]
    return "".join(known) if known else None


def _without_old_analysis(conversation: list[Any]) -> list[Any]:
    """Reasoning from before the last final answer is dropped, as the models were trained."""
    finals = [
        index
        for index, message in enumerate(conversation)
        if message.author.role == "assistant" and message.channel == "final"
    ]
    last = finals[-1] if finals else -1
    return [m for index, m in enumerate(conversation) if not (index < last and m.channel == "analysis")]


def tiktoken_file(vocab: dict[str, int]) -> bytes:
    """o200k_base as tiktoken stores it, from the byte-level vocabulary of a gpt-oss tokenizer (ids are ranks)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of.update((chr(256 + i), byte) for i, byte in enumerate(b for b in range(256) if b not in printable))
    ranked = sorted((rank, token) for token, rank in vocab.items() if not token.startswith("<|"))
    lines = [
        base64.b64encode(bytes(byte_of[char] for char in token)) + f" {rank}\n".encode()
        for rank, token in ranked
        if all(char in byte_of for char in token)
    ]
    return b"".join(lines)
