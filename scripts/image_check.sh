#!/usr/bin/env bash
# Builds the Dockerfile and runs the image where there is neither a Docker engine nor an image registry: buildah, on a
# base made of Debian packages. It proves the steps and the running container, not the official base image.
#   make image-check     as root on Debian; installs buildah, podman and mmdebstrap if they are missing
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=$PWD/.cache/image
BASE=localhost/python:trixie
IMAGE=localhost/derender-proxy:check
PORT=${PORT:-18517}
mkdir -p "$WORK"

say() { printf '%-24s %s\n' "$1" "$2"; }
fail() { echo "image-check: $1" >&2; exit 1; }

packages=(buildah podman mmdebstrap runc catatonit conmon netavark aardvark-dns iptables)
if ! command -v buildah >/dev/null || ! command -v podman >/dev/null || ! command -v mmdebstrap >/dev/null; then
  [ "$(id -u)" = 0 ] || fail "needs ${packages[*]}"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

if ! buildah inspect --type image $BASE >/dev/null 2>&1; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv \
    trixie "$WORK/base.tar" "$mirror"
  container=$(buildah from scratch)
  buildah add -q "$container" "$WORK/base.tar" /
  buildah commit -q "$container" $BASE >/dev/null
  buildah rm "$container" >/dev/null
  rm "$WORK/base.tar"
fi

# What this machine needs to reach its package index, if anything.
mounts=(-v /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro)
began=$(date +%s)
buildah bud --quiet --isolation chroot --network host --pull-never --build-arg BASE_IMAGE=$BASE \
  --build-arg REVISION="$(git rev-parse HEAD)" "${mounts[@]}" --format docker -t $IMAGE . >"$WORK/build.log" 2>&1 \
  || { tail -n 40 "$WORK/build.log" >&2; fail "the build failed"; }
say "build" "$(($(date +%s) - began)) s"

size() { podman image inspect --format '{{.Size}}' "$1"; }
say "image" "$(($(size $IMAGE) / 1000000)) MB, of which base $(($(size $BASE) / 1000000)) MB"

# The host's limits may be lower than podman's defaults; cgroups of version 1 need runc.
cat >"$WORK/containers.conf" <<'CONF'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
export CONTAINERS_CONF=$WORK/containers.conf

hardened=(--read-only --tmpfs /tmp:rw,size=64m --cap-drop ALL --security-opt no-new-privileges --network host)
inside() { podman run --rm "${hardened[@]}" --entrypoint /opt/derender/bin/python $IMAGE -c "$1"; }

found=$(inside 'import os; print(os.getuid(), os.getgid())')
[ "$found" = "65532 65532" ] || fail "runs as $found"
say "user" "$found"
inside '
import importlib.util, pathlib, shutil, sys
left = [name for name in ("cc", "gcc", "g++", "make", "git", "cargo") if shutil.which(name)]
left += [name for name in ("torch", "pip", "setuptools") if importlib.util.find_spec(name)]
sys.exit(f"left in the image: {left}" if left else 0)
' || fail "something is left in the image"
say "compiler, pip, torch" "none"

model=$PWD/config/demo-model
name=derender-image-check
podman rm -f $name >/dev/null 2>&1 || true
podman run -d --name $name "${hardened[@]}" --memory 512m -v "$model:/model:ro" -e DERENDER_PORT="$PORT" \
  $IMAGE serve /model --engine-url none --max-model-len 4096 >/dev/null
trap 'podman rm -f $name >/dev/null 2>&1 || true' EXIT
began=$(date +%s%N)
until curl -fsS --max-time 2 "http://127.0.0.1:$PORT/live" >/dev/null 2>&1; do
  if [ $(($(date +%s%N) - began)) -gt 60000000000 ]; then podman logs $name >&2; fail "does not answer /live"; fi
  sleep 0.1
done
say "/live" "after $((($(date +%s%N) - began) / 1000000)) ms"
code=$(curl -s -o /dev/null -w '%{http_code}' --max-time 5 "http://127.0.0.1:$PORT/ready")
[ "$code" = 200 ] || fail "/ready answers $code"
say "/ready" "$code"
podman healthcheck run $name >/dev/null || fail "the health check fails"
say "health check" "passes"
say "memory" "$(podman stats --no-stream --format '{{.MemUsage}}' $name)"
podman exec $name /bin/sh -c 'touch /opt/derender/x' 2>/dev/null && fail "the root file system is writable"
say "root file system" "read-only"
podman exec $name derender-proxy drain --quiet || fail "derender-proxy drain fails"
code=$(curl -s -o /dev/null -w '%{http_code}' --max-time 5 "http://127.0.0.1:$PORT/ready")
[ "$code" = 503 ] || fail "/ready answers $code after a drain"
say "derender-proxy drain" "returns; /ready $code"
began=$(date +%s%N)
podman stop --time 20 $name >/dev/null
code=$(podman inspect --format '{{.State.ExitCode}}' $name)
say "SIGTERM" "exit $code after $((($(date +%s%N) - began) / 1000000)) ms"
[ "$code" = 0 ] || fail "exit code $code at SIGTERM"
