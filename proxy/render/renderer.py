"""From an OpenAI request to prompt token ids and sampling parameters; one ``Renderer`` per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.errors import RequestError
from proxy.protocol.messages import has_media
from proxy.protocol.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from proxy.render import harmony
from proxy.render.context import CALLS_IN_MARKS, READ_MARKS, ReasoningEnd, merged, parse_context, template_kwargs
from proxy.render.conversation import developer_as_system, history_tool_calls, template_messages
from proxy.render.lengths import Lengths
from proxy.render.model import Model
from proxy.render.remote import RemotePrompt, RemoteRenderer
from proxy.render.rendered import RESERVED, Rendered
from proxy.render.sampling import Bounds, for_engine, mapped
from proxy.render.structured import constraint
from proxy.render.template import apply_template, facts_of
from proxy.render.workers import Workers

if TYPE_CHECKING:
    from proxy.derender.derenderer import ChatSettings

T = TypeVar("T")
# characters, about a millisecond of tokenizing: longer work leaves the event loop
INLINE_CHARS = 2048


@dataclass(frozen=True)
class RenderOptions:
    """``model``: directory or hub id. ``chat_template``: a file or a template's text.

    ``engine_has_tokenizer`` None: not known (yet), treated as without. ``max_logprobs`` -1: no bound but the
    vocabulary. ``system_start_date``: date in gpt-oss prompts, by default today's.
    """

    model: str
    tokenizer: str | None = None
    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    trust_request_chat_template: bool = False
    trust_remote_code: bool = False
    generation_config: str = "auto"
    max_model_len: int | None = None
    max_logprobs: int = 20
    engine_has_tokenizer: bool | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    render_url: str | None = None
    threads: int = 2
    queue: int = 256
    system_start_date: str | None = None


class Renderer:
    """Renders requests. Safe to use from many tasks of one event loop.

    ``max_model_len``, ``engine_has_tokenizer``, ``tool_call_parser`` and ``reasoning_parser`` may be set later, when
    the engine has been asked. Every fault of a request is a ``RequestError`` that names the field.
    """

    def __init__(self, options: RenderOptions, model: Model | None = None) -> None:
        """OSError or ValueError where the model's files, the template or the harmony library are no good.

        ``model``: one that is loaded already, in place of the one that ``options`` name.
        """
        self.options = options
        self.model = model or Model.load(
            options.model,
            tokenizer=options.tokenizer,
            generation_config=options.generation_config,
            trust_remote_code=options.trust_remote_code,
        )
        self.tokenizer = self.model.tokenizer
        self.vocab_size = self.model.vocab_size
        self.eos_token_ids = self.model.eos_token_ids
        self.max_model_len = options.max_model_len
        self.engine_has_tokenizer = options.engine_has_tokenizer
        self.tool_call_parser = options.tool_call_parser
        self.reasoning_parser = options.reasoning_parser
        self._bounds = Bounds(self.vocab_size, options.max_logprobs)
        self._template = _template_text(options.chat_template)
        self._remote = RemoteRenderer(options.render_url) if options.render_url else None
        self._workers = Workers(options.threads, options.queue)
        self._reasoning_end: ReasoningEnd | None = None
        self._harmony = self._make_harmony()

    @property
    def takes_media(self) -> bool:
        """Whether parts that are not text can be rendered (``parse_chat(media=...)``)."""
        return self._remote is not None

    async def chat(self, request: ChatCompletionRequest) -> Rendered:
        """The prompt of a chat request. UpstreamError where a remote renderer fails."""
        kwargs = template_kwargs(request, self.options.default_chat_template_kwargs)
        lengths = self._lengths(request)
        self._bounds.check(request)
        limits = constraint(request, has_tokenizer=bool(self.engine_has_tokenizer), tool_parser=self.tool_call_parser)
        if self._remote is not None:
            remote = await self._remote.chat(request.raw)
            rendered = self._rendered(request, lengths, remote.token_ids, self._remote_limits(remote, limits))
            rendered.features, rendered.content_parts = remote.features, remote.content_parts
            if remote.content_parts is not None:  # raw media, which the engine resolves itself
                rendered.extra["content_parts"] = remote.content_parts
            rendered.token_offsets = remote.token_offsets
            rendered.reasoning_ended = remote.reasoning_ended
            rendered.reasoning_parser_kwargs = remote.reasoning_parser_kwargs
        else:
            if has_media(request.messages):
                raise RequestError("Only text can be rendered here.", param="messages")
            ids, text = await self._run(len(request.raw), lambda: self._chat_prompt(request, kwargs, lengths))
            rendered = self._rendered(request, lengths, ids, limits)
            rendered.prompt_text = text
            if request.return_token_offsets and text is not None and request.truncate_prompt_tokens is None:
                rendered.token_offsets = self.model.offsets(text, add_special_tokens=request.add_special_tokens)
            self._add_reasoning(rendered, request, kwargs)
        rendered.parse_context = parse_context(request, kwargs, harmony=self._harmony is not None)
        rendered.settings = chat_settings(request, kwargs)
        return rendered

    async def completion(self, request: CompletionRequest) -> list[Rendered]:
        """The prompts of a completion request, in order."""
        lengths = self._lengths(request)
        self._bounds.check(request)
        limits = constraint(request, has_tokenizer=bool(self.engine_has_tokenizer), tool_parser=None)
        result = []
        for index, prompt in enumerate(request.prompts):
            text: str | None = None
            if isinstance(prompt, str):
                text = prompt
                ids = await self._encode(text, lengths, request.add_special_tokens)
            else:
                path = "prompt" if prompt is request.prompt else f"prompt[{index}]"
                self._bounds.check_ids(prompt, path, "prompt")
                ids = lengths.given(prompt)
            if not ids:
                raise RequestError("No token_ids rendered", param="prompt")
            rendered = self._rendered(request, lengths, ids, limits)
            rendered.prompt_text = text
            if request.return_token_offsets and text is not None and request.truncate_prompt_tokens is None:
                rendered.token_offsets = self.model.offsets(text, add_special_tokens=request.add_special_tokens)
            result.append(rendered)
        return result

    async def tokenize(self, request: TokenizeRequest) -> dict[str, Any]:
        """The answer of ``/tokenize``: ``count``, ``max_model_len``, ``tokens``, ``token_strs`` (null unless asked)."""
        unbounded = Lengths(None, None, "max_tokens")
        if request.messages is not None:
            chat = ChatCompletionRequest(
                messages=request.messages,
                tools=request.tools,
                chat_template=request.chat_template,
                add_special_tokens=bool(request.add_special_tokens),
            )
            kwargs = merged(
                self.options.default_chat_template_kwargs,
                {
                    **(request.chat_template_kwargs or {}),
                    "add_generation_prompt": request.add_generation_prompt,
                    "continue_final_message": request.continue_final_message,
                },
            )
            size = sum(len(str(message.get("content"))) for message in request.messages)
            ids, _ = await self._run(size, lambda: self._chat_prompt(chat, kwargs, unbounded))
        else:
            special = True if request.add_special_tokens is None else request.add_special_tokens
            ids = await self._encode(request.prompt or "", unbounded, special)
        strings = self.tokenizer.convert_ids_to_tokens(ids) if request.return_token_strs else None
        return {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids, "token_strs": strings}

    async def detokenize(self, request: DetokenizeRequest) -> dict[str, Any]:
        """The answer of ``/detokenize``: ``prompt``, special tokens included."""
        self._bounds.check_ids(request.tokens, "tokens")
        text = await self._run(len(request.tokens) * 4, lambda: self.tokenizer.decode(request.tokens))
        return {"prompt": text}

    async def close(self) -> None:
        """Stop the threads and close connections; work that is running is not waited for."""
        self._workers.close()
        if self._remote is not None:
            await self._remote.close()

    def _lengths(self, request: ChatCompletionRequest | CompletionRequest) -> Lengths:
        lengths = Lengths(
            self.max_model_len,
            request.output_limit,
            request.output_limit_param,
            request.truncate_prompt_tokens,
            request.truncation_side,
        )
        lengths.check()
        return lengths

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        return work() if size <= INLINE_CHARS else await self._workers.run(work)

    async def _encode(self, text: str, lengths: Lengths, special: bool) -> list[int]:
        return await self._run(len(text), lambda: lengths.encode(text, self.model, add_special_tokens=special))

    def _chat_prompt(
        self,
        request: ChatCompletionRequest,
        kwargs: dict[str, Any],
        lengths: Lengths,
    ) -> tuple[list[int], str | None]:
        own_template = request.chat_template
        if not self.options.trust_request_chat_template and (
            own_template is not None or (request.chat_template_kwargs or {}).get("chat_template") is not None
        ):
            raise RequestError(
                "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request "
                "with untrusted chat template.",
                param="chat_template",
            )
        if self._harmony is not None:
            ids = self._harmony.render(request.messages, request.tools, request.reasoning_effort)
            return lengths.given(ids), None
        template = self._resolve_template(own_template, request.tools)
        facts = facts_of(template, from_request=own_template is not None)
        wanted = self.options.chat_template_content_format
        as_parts = facts.reads_parts if wanted == "auto" else wanted == "openai"
        conversation = template_messages(request.messages, as_parts=as_parts)
        if not facts.knows_developer and any(message["role"] == "developer" for message in conversation):
            conversation = developer_as_system(conversation)
        text = apply_template(self.tokenizer, template, facts, conversation, request.tools, kwargs)
        ids = lengths.encode(text, self.model, add_special_tokens=request.add_special_tokens)
        if not ids:
            raise RequestError("No token_ids rendered", param="messages")
        return ids, text

    @property
    def template_text(self) -> str | None:
        """The template that is used in place of the checkpoint's; None where there is none."""
        return self._template

    def _resolve_template(self, given: str | None, tools: list[dict[str, Any]] | None) -> str:
        try:
            template = self.tokenizer.get_chat_template(given or self._template, tools=tools)
        except (ValueError, TypeError, AttributeError) as error:
            raise RequestError(
                "This model has no chat template: the server needs --chat-template, or use /v1/completions.",
                param="messages",
            ) from error
        return str(template)

    def _make_harmony(self) -> harmony.Harmony | None:
        if self.model.model_type != "gpt_oss" or self._template is not None:
            return None
        if harmony.available():
            return harmony.Harmony(self.tokenizer, date=self.options.system_start_date)
        if not getattr(self.tokenizer, "chat_template", None) and self._remote is None:
            raise ValueError("this gpt-oss checkpoint has no chat template: install derender-proxy[harmony]")
        return None

    def _remote_limits(self, remote: RemotePrompt, own: dict[str, Any] | None) -> dict[str, Any] | None:
        """The remote renderer's constraint, which knows the family's grammar; never for an engine without tokenizer."""
        return (remote.structured_outputs or own) if self.engine_has_tokenizer else None

    def _rendered(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        lengths: Lengths,
        ids: list[int],
        structured_outputs: dict[str, Any] | None,
    ) -> Rendered:
        defaults = self.model.sampling_defaults
        default_max = defaults.get("max_tokens")
        cap = default_max if self.model.caps_max_tokens else None
        echo_only = isinstance(request, CompletionRequest) and request.echo_only
        max_tokens = 1 if echo_only else lengths.max_tokens(len(ids), default_max, cap)
        params = mapped(
            request,
            defaults,
            max_tokens=max_tokens,
            structured_outputs=structured_outputs,
            keep_special_tokens=self._parser_needs_special_tokens(request),
        )
        given = request.output_limit is not None or default_max is not None
        return Rendered(
            prompt_token_ids=ids,
            sampling_params=for_engine(params, max_tokens_given=given, eos_token_ids=self.eos_token_ids),
            render_params=params,
            settings=chat_settings(request, {}),
            max_tokens=max_tokens,
            echo_only=echo_only,
            cache_salt=request.cache_salt,
            priority=request.priority,
            kv_transfer_params=request.kv_transfer_params,
            ec_transfer_params=request.ec_transfer_params,
            extra={key: value for key, value in request.extra.items() if key not in RESERVED},
        )

    def _parser_needs_special_tokens(self, request: ChatCompletionRequest | CompletionRequest) -> bool:
        if not isinstance(request, ChatCompletionRequest):
            return False
        calls = bool(request.tools) and request.tool_choice != "none"
        return self.reasoning_parser in READ_MARKS or (calls and self.tool_call_parser in CALLS_IN_MARKS)

    def _add_reasoning(self, rendered: Rendered, request: ChatCompletionRequest, kwargs: dict[str, Any]) -> None:
        if self.reasoning_parser is not None:
            rendered.reasoning_parser_kwargs = {"chat_template_kwargs": kwargs}
            if self._reasoning_end is None or self._reasoning_end.parser != self.reasoning_parser:
                self._reasoning_end = ReasoningEnd(self.reasoning_parser, self.tokenizer.get_added_vocab())
            rendered.reasoning_ended = self._reasoning_end(rendered.prompt_token_ids, kwargs)
        if not request.include_reasoning:
            rendered.reasoning_ended = True


def chat_settings(request: ChatCompletionRequest | CompletionRequest, kwargs: dict[str, Any]) -> ChatSettings:
    """What derendering depends on; ``kwargs`` are the template's final variables."""
    from proxy.derender.derenderer import ChatSettings

    shared: dict[str, Any] = {
        "stop": request.stop_strings,
        "include_stop_str_in_output": request.include_stop_str_in_output,
        "min_tokens": request.min_tokens,
        "stop_token_ids": tuple(request.stop_token_ids or ()),
        "ignore_eos": request.ignore_eos,
        "skip_special_tokens": request.skip_special_tokens is not False,
        "logprobs": request.wanted_logprobs,
        "return_tokens_as_token_ids": bool(request.return_tokens_as_token_ids),
        "return_token_ids": bool(request.return_token_ids),
    }
    if isinstance(request, CompletionRequest):
        return ChatSettings(**shared)
    return ChatSettings(
        tools=request.tools or [],
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        include_reasoning=request.include_reasoning,
        chat_template_kwargs=kwargs,
        history_tool_calls=history_tool_calls(request.messages),
        **shared,
    )


def _template_text(given: str | None) -> str | None:
    if given is None:
        return None
    if "{{" in given or "{%" in given:
        return given
    return Path(given).read_text(encoding="utf-8")
