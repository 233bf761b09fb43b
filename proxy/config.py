"""One settings tree: flags win over ``DERENDER_*`` variables, these over the YAML file, that over defaults.

Everything is parsed and checked here, before a port is bound; whatever is wrong is a ``ConfigError`` that names
the flag, and ``serve`` ends with exit code 64. A setting that this version does not carry out is refused, never
ignored. The command line, ``config/default.yaml`` and the table in the README are derived from this class.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from proxy.rollout.canary import Plan
from proxy.rollout.options import parse_options

ENV_PREFIX = "DERENDER_"
EX_USAGE = 64


class ConfigError(Exception):
    """A configuration that cannot be served; one line a fault, each naming a flag."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Knob:
    """What the model field alone cannot say: how the flag looks and whether its value is secret."""

    metavar: str | None = None
    secret: bool = False
    table: bool = True  # shown in the README
    repeat: bool = False  # the flag may be given several times; its values are joined with commas


def _items(value: object) -> object:
    """A list from the command line as it is; from the environment either JSON or comma-separated."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            return json.loads(text)
        return [item.strip() for item in text.split(",") if item.strip()]
    return value


def _joined(value: object) -> object:
    return ",".join(str(item) for item in value) if isinstance(value, list) else value


def _object(value: object) -> object:
    if isinstance(value, str):
        return json.loads(value) if value.strip() else {}
    return value


Names = Annotated[list[str], NoDecode, BeforeValidator(_items)]
JsonObject = Annotated[dict[str, Any], NoDecode, BeforeValidator(_object)]


class Settings(BaseSettings):
    """The settings of ``serve`` and ``check``. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix=ENV_PREFIX, protected_namespaces=())

    model: Annotated[str | None, Knob("DIR|ID")] = Field(
        None, description="Directory or hub id with the tokenizer files, config.json and chat template."
    )
    config: Annotated[str | None, Knob("FILE")] = Field(None, description="YAML file with any of these settings.")

    host: str = Field("0.0.0.0", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one and logs it.")

    engine_url: Annotated[str, BeforeValidator(_joined), Knob("URL|none", repeat=True)] = Field(
        "http://127.0.0.1:8200",
        description="The engine, or several, given repeatedly or with commas: each request goes to the least loaded. "
        "`none` is the render tier alone (needs --max-model-len).",
    )
    engine: Literal["auto", "vllm", "sglang", "completions"] = Field(
        "vllm",
        description="What the engine speaks: vLLM's generate, SGLang's generate, or completions with token ids (vLLM, "
        "SGLang, TensorRT-LLM); `auto` asks it.",
    )
    engine_api_key: Annotated[str | None, Knob("KEY", secret=True)] = Field(
        None, description="Sent to the engine as a Bearer token."
    )
    engine_has_tokenizer: Literal["auto", "true", "false"] = Field(
        "auto",
        description="Whether the engine can constrain output (response_format, bad_words); `auto` probes it.",
    )

    tokenizer: Annotated[str | None, Knob("DIR|ID")] = Field(
        None, description="Tokenizer files, where they are not the model's."
    )
    served_model_name: Annotated[Names, Knob("NAME")] = Field(
        [], description="Model names that clients may use; by default those that the engine lists."
    )
    max_model_len: int | None = Field(None, ge=1, description="Context length; by default what the engine says.")
    generation_config: Annotated[str, Knob("auto|vllm|DIR")] = Field(
        "auto", description="Where default sampling parameters come from: the model, nowhere, or a directory."
    )
    trust_remote_code: bool = Field(False, description="Let the model's files bring Python code.")
    chat_template: Annotated[str | None, Knob("FILE|TEMPLATE")] = Field(
        None, description="Chat template, as a file or as text, in place of the model's."
    )
    trust_request_chat_template: bool = Field(False, description="Take a chat template from a request.")
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto", description="How message content reaches the template."
    )
    default_chat_template_kwargs: Annotated[JsonObject, Knob("JSON")] = Field(
        {}, description="Template arguments for every request; the request's own win."
    )
    render_url: Annotated[str | None, Knob("URL")] = Field(
        None, description="A remote renderer (vLLM's /v1/chat/completions/render) in place of the local template."
    )

    tool_call_parser: Annotated[str, Knob("NAME|auto|none")] = Field(
        "none",
        description="How this model writes tool calls, by vLLM's name; or auto, hf (its response_template), vllm:NAME.",
    )
    reasoning_parser: Annotated[str, Knob("NAME|auto|none")] = Field(
        "none", description="How this model marks its reasoning; the same names."
    )
    enable_auto_tool_choice: bool = Field(True, description="Accepted for vLLM's sake; always on.", exclude=True)
    tool_call_streaming: Literal["incremental", "complete"] = Field(
        "incremental", description="Arguments as they are written, or each call at once when it is complete."
    )
    framing_whitespace: Literal["keep", "trim"] = Field(
        "keep", description="White space between the parts of an answer: as vLLM keeps it, or trimmed."
    )
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = Field(
        "reasoning", description="Name of the field that carries reasoning to clients."
    )

    api_key: Annotated[Names, Knob("KEY", secret=True)] = Field(
        [], description="Keys of which a client must send one as a Bearer token; none: no check."
    )
    request_id_header: str = Field(
        "x-request-id", pattern=r"^[A-Za-z0-9-]+$", description="Header that carries the request id, in and out."
    )
    max_concurrent_streams: int = Field(
        4096, ge=0, description="Requests generated at one time; more are a 429. 0: no limit."
    )
    max_body_size: int = Field(32 * 1024 * 1024, ge=1024, description="Largest request body; larger is a 413.")
    max_n: int = Field(128, ge=1, description="Largest n.")
    max_prompts: int = Field(1024, ge=1, description="Most prompts of one completion request.")
    max_logprobs: int = Field(20, ge=0, description="Largest top_logprobs.")
    max_event_size: int = Field(64 * 1024 * 1024, ge=65536, description="Largest event taken from the engine.")

    connect_timeout: float = Field(5.0, gt=0, description="To reach the engine.")
    first_token_timeout: float = Field(600.0, gt=0, description="From request to the engine's first event.")
    idle_timeout: float = Field(120.0, gt=0, description="Between two events of the engine.")
    client_stall_timeout: float = Field(
        60.0, gt=0, description="A client that takes nothing for so long is dropped and its request aborted."
    )
    sse_keep_alive_interval: float = Field(
        15.0, ge=0, description="Idle time after which a stream gets a comment line. 0: never."
    )
    shutdown_window: float = Field(
        5.0,
        ge=0,
        description="How long a draining server, no longer ready, still takes requests: until every gateway has heard.",
    )
    shutdown_timeout: float = Field(
        30.0, ge=0, description="How long open streams may go on after that; then they end with an error event."
    )
    render_threads: int = Field(2, ge=1, le=64, description="Threads that tokenize long prompts.")

    otlp_traces_endpoint: Annotated[str | None, Knob("URL")] = Field(
        None,
        description="Where OpenTelemetry spans go, as in http://collector:4318/v1/traces (needs the extra `otel`); by "
        "default what OTEL_EXPORTER_OTLP_ENDPOINT says.",
    )
    debug: bool = Field(False, description="Serve /debug and /debug/ui: open streams and counters, never content.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line logged.")
    log_format: Literal["text", "json"] = Field("text", description="Form of the log lines.")

    mode: Literal["derender", "passthrough", "shadow"] = Field(
        "derender", description="Which path serves chat and completions; read again with the file."
    )
    canary_percent: Annotated[float | None, Knob("PERCENT")] = Field(
        None,
        ge=0,
        le=100,
        description="Share of requests on the derender path, the others passed through; read again with the file.",
    )
    rollout: Annotated[JsonObject, Knob("JSON")] = Field(
        {}, description="Routes, canary key, allowed paths, shadow bounds (see Rollout); read again with the file."
    )
    derender_state: Literal["full", "compact"] = Field(
        "full",
        description="What clients of the stateless endpoints carry: all ids, or a snapshot alone (needs a state key).",
    )
    state_key: Annotated[str | None, Knob("KEY", secret=True)] = Field(
        None, description="Signs stream_state; the same for all replicas. Without one, a random key of this process."
    )
    state_key_file: Annotated[str | None, Knob("FILE")] = Field(
        None, description="File with the key, in place of --state-key."
    )
    resume_on_engine_loss: bool = Field(
        False, description="Ask another engine for the rest of an answer whose engine was lost, where that is sound."
    )
    workers: int = Field(
        1, ge=1, le=256, description="Processes that share the port. Limits on streams and the cache are for each."
    )
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="A port of its own for probes, /metrics and /debug, without TLS; the last two are then only there.",
    )
    cache_ttl: float = Field(
        120.0, gt=0, description="How long a live stream of the stateless endpoints waits for its next chunk."
    )
    cache_max_entries: int = Field(8192, ge=0, description="Live streams kept. 0: none.")
    cache_max_bytes: int = Field(256 * 1024 * 1024, ge=0, description="Memory that they may take. 0: none.")
    ssl_certfile: Annotated[str | None, Knob("FILE")] = Field(
        None, description="Certificate chain for TLS at the port; read again when it is renewed."
    )
    ssl_keyfile: Annotated[str | None, Knob("FILE")] = Field(
        None, description="Its private key, where it is not in the same file."
    )
    ssl_ca_certs: Annotated[str | None, Knob("FILE")] = Field(
        None, description="CAs whose certificates clients have to show. None: clients show none."
    )

    _flags: dict[str, object] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # ``load`` gives the flags and the file; only the environment is read here.
        env = EnvSettingsSource(settings_cls, env_prefix=ENV_PREFIX, env_ignore_empty=True)
        flags: dict[str, Any] = dict(getattr(init_settings, "init_kwargs", {}))
        file = flags.pop("__file__", {})
        return InitSettingsSource(settings_cls, flags), env, InitSettingsSource(settings_cls, file)

    @property
    def engine_urls(self) -> list[str]:
        """The engines' URLs without trailing slashes; none for the tier without an engine."""
        if self.engine_url == "none":
            return []
        return list(dict.fromkeys(url.strip().rstrip("/") for url in self.engine_url.split(",") if url.strip()))

    @property
    def engine_base_url(self) -> str | None:
        """The first of them."""
        return next(iter(self.engine_urls), None)

    @property
    def plan(self) -> Plan:
        """Which request takes which path. ValueError for options that make no sense."""
        return Plan(self.mode, self.canary_percent, parse_options(self.rollout))

    @property
    def config_file(self) -> str | None:
        """The file that these settings were read from, if there is one."""
        return self.config or os.environ.get(ENV_PREFIX + "CONFIG") or None

    def reread_plan(self) -> Plan:
        """The plan as the file has it now; flags and environment win as before. ValueError where it is no good."""
        try:
            return load(self._flags).plan
        except ConfigError as error:
            raise ValueError("; ".join(error.faults)) from None

    @property
    def state_secret(self) -> bytes | None:
        """The key that signs ``stream_state``; None where there is none. ConfigError for a file that cannot be read."""
        if self.state_key_file is None:
            return None if self.state_key is None else self.state_key.encode()
        try:
            key = Path(self.state_key_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"--state-key-file: cannot read {self.state_key_file}: {error.strerror}") from None
        if not key:
            raise ConfigError(f"--state-key-file: {self.state_key_file} is empty")
        return key

    @property
    def parser_names(self) -> tuple[str | None, str | None]:
        """Names of the reasoning and of the tool-call parser, None where there is none."""
        reasoning, tool = self.reasoning_parser, self.tool_call_parser
        return (None if reasoning == "none" else reasoning), (None if tool == "none" else tool)

    def effective(self) -> dict[str, object]:
        """The settings for the log, secrets masked."""
        shown: dict[str, object] = {}
        for name, field in type(self).model_fields.items():
            knob = knob_of(field)
            value = getattr(self, name)
            shown[name] = _mask(value) if knob.secret and value else value
        return shown


def _mask(value: object) -> object:
    return ["***"] * len(value) if isinstance(value, list) else "***"


def knob_of(field: FieldInfo) -> Knob:
    return next((item for item in field.metadata if isinstance(item, Knob)), Knob())


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list


def choices_of(field: FieldInfo) -> tuple[str, ...] | None:
    """The values of an enumerated setting, else None."""
    return tuple(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None


def load(flags: Mapping[str, object]) -> Settings:
    """Merge flags, environment and file, validate and freeze; raises ``ConfigError``."""
    environ = os.environ
    _check_environment(environ)
    path = flags.get("config") or environ.get(ENV_PREFIX + "CONFIG")
    file = _read_file(str(path)) if path else {}
    try:
        settings = Settings(**{**flags, "__file__": file})  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError(*(_fault(item, flags, environ, str(path)) for item in error.errors())) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    settings._flags = dict(flags)
    _check(settings)
    return settings


def _fault(item: Any, flags: Mapping[str, object], environ: Mapping[str, str], path: str) -> str:
    name = str(item["loc"][0]) if item["loc"] else ""
    env = ENV_PREFIX + name.upper()
    if name in flags:
        where = flag_of(name)
    elif env in environ:
        where = f"{flag_of(name)} ({env})"
    else:
        where = f"{flag_of(name)} ({path})"
    if item["type"] == "extra_forbidden":
        return f"{name}: no such setting ({path})"
    message = str(item["msg"])
    if isinstance(item.get("ctx", {}).get("error"), json.JSONDecodeError):
        message = f"not valid JSON: {item['ctx']['error']}"
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _read_file(path: str) -> dict[str, object]:
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config: {path} must be a mapping of settings")
    # Keys may be written as the flags are, or as the environment has them.
    found = {str(key).replace("-", "_"): value for key, value in loaded.items()}
    if len(found) != len(loaded):
        raise ConfigError(f"--config: {path} gives a setting twice")
    unknown = [key for key in found if key not in Settings.model_fields or key == "config"]
    if unknown:
        raise ConfigError(*(f"{key}: no such setting ({path})" for key in unknown))
    return found


def _check_environment(environ: Mapping[str, str]) -> None:
    faults = []
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if value.startswith(("tcp://", "udp://")) or name.startswith(("service_", "port_")):
            faults.append(
                f"{variable}={value} comes from a Kubernetes service named `derender`, not from you: "
                "set enableServiceLinks: false in the pod, or rename the service"
            )
        elif name not in Settings.model_fields:
            faults.append(f"{variable}: no such setting")
    if faults:
        raise ConfigError(*faults)


def _check(settings: Settings) -> None:
    """What no single field can say."""
    faults = []
    named = [("engine_url", url) for url in settings.engine_urls]
    if settings.render_url not in (None, "none"):
        named.append(("render_url", str(settings.render_url)))
    for name, url in named:
        if not url.startswith(("http://", "https://")):
            faults.append(f"{flag_of(name)}: {url} is not an http:// or https:// URL")
    if settings.engine_url != "none" and not settings.engine_urls:
        faults.append("--engine-url: an empty value")
    if settings.engine_url == "none" and settings.resume_on_engine_loss:
        faults.append("--resume-on-engine-loss: there is no engine to lose with --engine-url none")
    if settings.engine_url == "none" and settings.max_model_len is None:
        faults.append("--max-model-len: required with --engine-url none, since there is no engine to ask")
    if settings.ssl_certfile is None:
        faults += [
            f"{flag_of(name)}: given without --ssl-certfile, there is no TLS"
            for name in ("ssl_keyfile", "ssl_ca_certs")
            if getattr(settings, name) is not None
        ]
    if settings.admin_port is not None and settings.admin_port == settings.port and settings.port:
        faults.append(f"--admin-port: {settings.admin_port} is the public port")
    if settings.state_key is not None and settings.state_key_file is not None:
        faults.append("--state-key: give it or --state-key-file, not both")
    elif settings.state_key is not None and not settings.state_key.strip():
        faults.append("--state-key: an empty value")
    elif settings.derender_state == "compact" and settings.state_key is None and settings.state_key_file is None:
        faults.append(
            "--derender-state: compact needs --state-key or --state-key-file, the same for all replicas: a compact "
            "state that a replica cannot read is lost"
        )
    try:
        plan = settings.plan
        if settings.engine_url == "none" and plan.passes:
            faults.append("--mode, --canary-percent: nothing can be passed through with --engine-url none")
    except ValueError as error:
        faults.append(f"--{error}")
    if not settings.enable_auto_tool_choice:
        faults.append("--enable-auto-tool-choice: always on; it cannot be switched off")
    for name in ("served_model_name", "api_key"):
        if any(not item.strip() for item in getattr(settings, name)):
            faults.append(f"{flag_of(name)}: an empty value")
    if settings.model is None:
        faults.append("MODEL: required (a directory or hub id with the tokenizer files)")
    elif settings.model.startswith(("/", "./", "../", "~")) and not Path(settings.model).is_dir():
        faults.append(f"MODEL: there is no directory {settings.model}")  # else it would be taken for a hub id
    if faults:
        raise ConfigError(*faults)
