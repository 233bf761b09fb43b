"""A scripted token-only engine: the demo's engine, the tests' upstream, the benchmarks' source of load."""

from proxy.simulator.app import create_app
from proxy.simulator.options import Options, add_arguments, options_from
from proxy.simulator.server import run

__all__ = ["Options", "add_arguments", "create_app", "options_from", "run"]
