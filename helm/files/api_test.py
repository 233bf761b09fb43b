"""`helm test`: the Service reaches a sidecar that is ready, lists a model and shows its metrics."""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

BASE_URL = os.environ["BASE_URL"]
DEADLINE = time.monotonic() + float(os.environ.get("TIMEOUT", "60"))


def keys(text: str) -> list[str]:
    """API keys as the sidecar reads them: JSON, or separated by commas."""
    found = json.loads(text) if text.startswith("[") else text.split(",")
    return [key.strip() for key in found if key.strip()]


def get(path: str) -> bytes:
    """The body of an answer 200; tries again until the deadline."""
    request = urllib.request.Request(BASE_URL + path)
    for key in keys(os.environ.get("API_KEY", ""))[:1]:
        request.add_header("Authorization", f"Bearer {key}")
    context = ssl._create_unverified_context() if BASE_URL.startswith("https:") else None
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                body: bytes = answer.read()
                return body
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > DEADLINE:
                sys.exit(f"{path}: {error}")
        time.sleep(1)


get("/live")
get("/ready")
models = [card["id"] for card in json.loads(get("/v1/models"))["data"]]
print("models:", ", ".join(models))
if not models:
    sys.exit("/v1/models lists none")
ours = b"derender_build_info"
if not os.environ.get("METRICS_ELSEWHERE") and ours not in get("/metrics"):
    sys.exit(f"/metrics has no {ours.decode()}")
print("ok")
