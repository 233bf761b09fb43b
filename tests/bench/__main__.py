"""``make bench``: the core alone with real tokenizers, every format, the gateway against a bare relay, and the derender
endpoints against vLLM's.

``--quick`` takes fewer rounds.
"""

from __future__ import annotations

import sys

from tests.bench import core, derender, formats, gateway

if __name__ == "__main__":
    core.main()
    print()
    formats.main(())
    print()
    gateway.main(quick="--quick" in sys.argv)
    print()
    derender.main(["--quick"] if "--quick" in sys.argv else [])
