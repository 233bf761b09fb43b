"""derender-proxy: an OpenAI-compatible sidecar for token-only LLM engines."""

__version__ = "0.1.0"
