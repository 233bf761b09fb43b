#!/usr/bin/env bash
# Writes requirements.lock (what the image runs) and requirements-build.lock (what builds its wheel) from
# pyproject.toml: every package pinned, with the hashes of all its files, for Linux on any machine.
#   scripts/lock.sh             keeps what is pinned where pyproject.toml still allows it
#   scripts/lock.sh --upgrade   takes the newest
set -euo pipefail
cd "$(dirname "$0")/.."
UV=.cache/uv
if [ ! -x $UV/bin/uv ]; then
  "${PYTHON:-python3}" -m venv $UV
  $UV/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
fi
extras=()
for extra in harmony otel; do
  # What the image can do beyond the bare package; an extra that pyproject.toml does not have is left out.
  if grep -qE "^$extra = \[" pyproject.toml; then extras+=(--extra "$extra"); fi
done
compile() {
  $UV/bin/uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --no-annotate \
    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' "$@"
}
compile "${extras[@]}" "${@}" --output-file requirements.lock pyproject.toml
printf 'pip\nsetuptools>=77\nwheel\n' | compile "${@}" --output-file requirements-build.lock -
