"""``make bench``: the core alone, the gateway against a bare relay, the derender endpoints against vLLM's.

``--quick`` takes fewer rounds.
"""

from __future__ import annotations

import sys

from tests.bench import core, derender, gateway

if __name__ == "__main__":
    core.main()
    print()
    gateway.main(quick="--quick" in sys.argv)
    print()
    derender.main(["--quick"] if "--quick" in sys.argv else [])
