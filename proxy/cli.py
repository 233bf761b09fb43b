"""``derender-proxy``: serve, drain, simulate, check, derender, version. Flags are made from the settings model."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from proxy import __version__, offline
from proxy.config import EX_USAGE, ConfigError, Settings, choices_of, flag_of, is_list, knob_of, load

if TYPE_CHECKING:
    from proxy.routes.context import Parts

log = logging.getLogger("derender")


class Parser(argparse.ArgumentParser):
    """argparse that ends with the exit code of bad usage (64), as a bad configuration does."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EX_USAGE, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="derender-proxy", description="OpenAI-compatible sidecar for token-only LLM engines.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    serve = commands.add_parser("serve", help="the sidecar", argument_default=argparse.SUPPRESS)
    add_settings(serve)
    check = commands.add_parser(
        "check",
        help="load tokenizer, template and parsers, ask the engine, print what was found; exit 1 on a mismatch",
        argument_default=argparse.SUPPRESS,
    )
    add_settings(check)
    simulate = commands.add_parser("simulate", help="a scripted token-only engine")
    from proxy.simulator.options import add_arguments

    add_arguments(simulate)
    derender = commands.add_parser("derender", help="offline: a captured token-only answer to chat chunks")
    offline.add_arguments(derender)
    drain = commands.add_parser("drain", help="for a preStop hook: begin the drain, return when no stream is open")
    drain.add_argument("--port", type=int, metavar="N", help="Which sidecar, where several run. Default: the only one.")
    drain.add_argument("--quiet", action="store_true", help="Do not tell how many streams are open.")
    commands.add_parser("version", help="print the version")
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One flag for every field of ``Settings``; values stay text, the model checks them."""
    for name, field in Settings.model_fields.items():
        knob = knob_of(field)
        text = (field.description or "").replace("%", "%%")
        if field.default not in (None, [], {}):
            text += f" Default: {field.default}."
        if name == "model":
            parser.add_argument("model", nargs="?", metavar="MODEL", help=text)
        elif field.annotation is bool:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, help=text)
        elif knob.repeat:
            parser.add_argument(flag_of(name), action="append", metavar=knob.metavar or "VALUE", help=text)
        elif is_list(field):
            parser.add_argument(flag_of(name), nargs="+", metavar=knob.metavar or "VALUE", help=text)
        else:
            choices = choices_of(field)
            shown = "{" + ",".join(choices) + "}" if choices else knob.metavar or metavar_of(field.annotation)
            parser.add_argument(flag_of(name), metavar=shown, help=text)


def metavar_of(annotation: Any) -> str:
    kinds = {int: "N", float: "SECONDS", str: "TEXT"}
    for kind in (annotation, *typing.get_args(annotation)):
        if kind in kinds:
            return kinds[kind]
    return "VALUE"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; the exit code is 64 for a bad configuration, 1 for a failed check, else 0."""
    # It would tell everyone who starts a sidecar that torch is missing.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    arguments = vars(build_parser().parse_args(argv))
    command = arguments.pop("command")
    if command == "version":
        print(__version__)
        sys.exit(0)
    try:
        if command == "simulate":
            sys.exit(simulate(arguments))
        if command == "derender":
            sys.exit(offline.run(argparse.Namespace(**arguments)))
        if command == "drain":
            from proxy.serving.command import drain

            sys.exit(drain(arguments["port"], quiet=arguments["quiet"]))
        settings = load(arguments)
        sys.exit(serve(settings) if command == "serve" else check(settings))
    except ConfigError as error:
        for fault in error.faults:
            print(f"derender-proxy: error: {fault}", file=sys.stderr)
        sys.exit(EX_USAGE)


def simulate(arguments: dict[str, Any]) -> int:
    """Run the scripted engine; a model or script that cannot be read is bad usage."""
    from proxy.simulator.options import options_from
    from proxy.simulator.server import run

    try:
        run(options_from(argparse.Namespace(**arguments)))
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from None
    return 0


def serve(settings: Settings) -> int:
    """Load, bind, run until a signal. Nothing is bound before everything has been loaded."""
    # The server's packages are not needed to refuse a configuration, and take most of the start-up time.
    from proxy import app
    from proxy.observe import logs
    from proxy.serving import control
    from proxy.serving.workers import Supervisor

    logs.configure(settings.log_level, settings.log_format)
    log.info("starting", extra={"fields": {"version": __version__, **settings.effective()}})
    parts = app.load(settings)
    shared = settings.workers > 1
    listeners = bind_all(settings)
    addresses = [listener.getsockname()[:2] for listener in listeners[0]]
    host, port = addresses[0]
    told = {"host": host, "port": port, **({"admin_port": addresses[1][1]} if addresses[1:] else {})}
    log.info("listening", extra={"fields": told})
    # Until the server listens to them there is nothing to drain.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    directory = control.make_directory(port)
    # What start-up made lives as long as the process; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        if not shared:
            app.worker(parts, directory, 0).run(sockets=listeners[0])
            return 0
        parent = os.getpid()

        def work(index: int, sockets: list[socket.socket]) -> None:
            app.worker(parts, directory, index, parent).run(sockets=sockets)

        return Supervisor(listeners, work).run()
    finally:
        control.remove_directory(directory)


def bind_all(settings: Settings) -> list[list[socket.socket]]:
    """For each worker a socket at the port, and one at the admin port if there is one. Raises ConfigError."""
    rows: list[list[socket.socket]] = [[] for _ in range(settings.workers)]
    with contextlib.ExitStack() as bound:
        for flag, port in (("port", settings.port), ("admin-port", settings.admin_port)):
            for row in rows if port is not None else ():
                listener = bound.enter_context(bind(settings.host, port or 0, shared=len(rows) > 1, flag=flag))
                row.append(listener)
                port = listener.getsockname()[1]
        bound.pop_all()
    return rows


def bind(host: str, port: int, *, shared: bool = False, flag: str = "port") -> socket.socket:
    """A socket to listen at, of several at one address if ``shared``; ConfigError where the address cannot be had."""
    listener = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(f"--host/--{flag}: cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.set_inheritable(True)
    return listener


def check(settings: Settings) -> int:
    """Print what was found, one line a fact; 1 when something does not fit."""
    from proxy import app
    from proxy.observe import logs

    logs.configure("error", settings.log_format)
    parts = app.load(settings)
    renderer = parts.renderer
    reasoning, tool = parts.settings.parser_names
    print(f"model            {settings.model}")
    print(f"vocabulary       {renderer.vocab_size} ids")
    print(f"end of sequence  {', '.join(map(str, renderer.eos_token_ids)) or 'none'}")
    print(f"reasoning parser {reasoning or 'none'}")
    print(f"tool parser      {tool or 'none'}")
    if parts.parsers_why:
        print(f"auto             {parts.parsers_why}")
    faults = asyncio.run(_check_engine(parts))
    for fault in faults:
        print(f"MISMATCH         {fault}")
    return 1 if faults else 0


async def _check_engine(parts: Parts) -> list[str]:
    """Ask the engine what it serves and compare; one line a fault."""
    from proxy.errors import UpstreamError

    settings, engine = parts.settings, parts.engine
    if engine is None:
        print("engine           none")
        return []
    print(f"engine           {', '.join(settings.engine_urls)}")
    faults = []
    await engine.start()
    try:
        await parts.models.refresh()
        print(f"engine dialect   {engine.dialect or 'mixed'}")
        bases = [card for card in await engine.models() if card.parent is None]
        print(f"engine models    {', '.join(card.id for card in bases)}")
        length = bases[0].max_model_len if bases else None
        print(f"engine context   {length}")
        if not bases:
            faults.append("the engine lists no model")
        if settings.max_model_len and length and settings.max_model_len > length:
            faults.append(f"--max-model-len {settings.max_model_len} is more than the engine's {length}")
        if not await engine.healthy():
            faults.append("the engine says that it is not healthy")
        await parts.rollout.start()
        if (wrong := await parts.rollout.nothing_to_pass(parts.models.default_engine_name)) is not None:
            faults.append(wrong)
        await parts.rollout.close()
    except UpstreamError as error:
        faults.append(f"the engine does not answer: {error.message}")
    finally:
        await engine.close()
    return faults


if __name__ == "__main__":
    main()
