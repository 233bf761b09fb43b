"""The engine's preStop hook: return when the sidecar has no stream left, so that the engine outlives them all.

The hooks of all containers start together, and the engine is told to stop as soon as its own returns, the sidecar
only after the engine is gone. So this waits out the window in which the draining sidecar still takes streams, then
until its gauge of open streams is zero. It needs python3 and nothing else; it gives up rather than fail.
"""

from __future__ import annotations

import argparse
import ssl
import time
import urllib.error
import urllib.request

GAUGE = "derender_streams_active"


def open_streams(url: str) -> float | None:
    """How many streams the sidecar has; None when it cannot say."""
    context = ssl._create_unverified_context() if url.startswith("https:") else None
    with urllib.request.urlopen(url, timeout=5, context=context) as answer:
        text = answer.read().decode("utf-8", "replace")
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((GAUGE + " ", GAUGE + "{"))]
    return sum(float(value) for value in found) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--metrics", required=True, help="URL of the sidecar's /metrics")
    parser.add_argument("--window", type=float, default=15, help="seconds in which new streams still come")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that streams get after that")
    options = parser.parse_args()
    time.sleep(options.window)
    deadline = time.monotonic() + options.timeout
    idle = 0
    while idle < 2 and time.monotonic() < deadline:
        streams: float | None
        try:
            streams = open_streams(options.metrics)
        except (urllib.error.URLError, ConnectionError) as error:
            # Refused: the sidecar is gone, and its streams with it. Anything else may be a moment's trouble.
            refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
            streams = 0 if refused else None
        except (OSError, ValueError):
            streams = None
        # Twice, since a request may be between two counts.
        idle = idle + 1 if streams == 0 else 0
        time.sleep(0.5)


if __name__ == "__main__":
    main()
