# The sidecar without torch, compiler, pip or cache. It runs as 65532 and writes to nothing but /tmp.
#   docker build -t derender-proxy .
#   docker run --read-only --tmpfs /tmp -v ./model:/model:ro -p 8000:8000 derender-proxy serve /model --engine-url URL
# The digest of the base image is the builder's to pin: --build-arg BASE_IMAGE=python:3.13-slim-trixie@sha256:...
ARG BASE_IMAGE=python:3.13-slim-trixie

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS build
SHELL ["/bin/sh", "-eu", "-c"]
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

# Two environments: one to build our wheel, one that is shipped, into which pip installs from outside. Wheels only,
# each held to a hash of the lock file. Dropped: tests, C sources, and models' networks, which need torch to be imported.
COPY requirements.lock requirements-build.lock ./
RUN python3 -m venv tools \
 && tools/bin/python -m pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements-build.lock \
 && python3 -m venv --without-pip /opt/derender \
 && tools/bin/python -m pip --python /opt/derender/bin/python install --no-cache-dir --no-compile \
      --require-hashes --only-binary=:all: -r requirements.lock \
 && find /opt/derender/lib -depth \( -type d -name tests \
      -o -type f \( -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.a' \
      -o -path '*/transformers/models/*' ! -path '*/auto/*' \( -name 'modeling_*.py' -o -name 'modular_*.py' \) \) \) \
      -exec rm -rf {} +

COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
RUN tools/bin/python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir wheels . \
 && tools/bin/python -m pip --python /opt/derender/bin/python install --no-cache-dir --no-compile --no-deps \
      --no-index wheels/*.whl

# Byte code, since the running container cannot write any. Of transformers' 500 model families only what start-up
# imports: the rest would double the image.
COPY config/demo-model /build/demo-model
RUN /opt/derender/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      -x '/transformers/models/' /opt/derender/lib \
 && HF_HUB_OFFLINE=1 /opt/derender/bin/python -m proxy check /build/demo-model --engine-url none --max-model-len 4096 \
 && /opt/derender/bin/python -c 'import proxy.app, sys; sys.exit("torch" in sys.modules)'

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="derender-proxy" \
      org.opencontainers.image.description="OpenAI-compatible sidecar for token-only LLM engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /opt/derender /opt/derender
# A home that exists under a read-only root; mount a volume at HF_HOME to keep tokenizer files across restarts.
ENV PATH=/opt/derender/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HOME=/tmp/huggingface \
    HF_HUB_DISABLE_TELEMETRY=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
# The process is up; whether it can serve is /ready, which an orchestrator asks itself. Another port is told as
# DERENDER_PORT, an admin port as DERENDER_ADMIN_PORT and TLS as DERENDER_SSL_CERTFILE: this does not see the flags.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import os, ssl, urllib.request as r; e = os.environ.get; a = e('DERENDER_ADMIN_PORT'); s = 's' if e('DERENDER_SSL_CERTFILE') and not a else ''; r.urlopen('http%s://127.0.0.1:%s/live' % (s, a or e('DERENDER_PORT', '8000')), timeout=2, context=ssl._create_unverified_context() if s else None)"]
ENTRYPOINT ["derender-proxy"]
CMD ["serve"]
