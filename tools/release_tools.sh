#!/usr/bin/env bash
# Makes the virtual environment with requirements/release.txt (checkov, CycloneDX) beside the test
# cluster's binaries, once per lock, and prints its bin folder. A place of its own, because checkov
# pins versions that the rest of the project must not be bound to.
. "$(cd "$(dirname "$0")" && pwd)/cluster/env.sh"
lock=$CLUSTER_REPO/requirements/release.txt
venv=$CLUSTER_CACHE/release-$(sha256sum "$lock" | cut -c1-16)
uv=$CLUSTER_REPO/.venv/bin/uv
if [ ! -e "$venv/.complete" ]; then
  [ -x "$uv" ] || die "$uv is missing: run make setup"
  mkdir -p "$CLUSTER_CACHE"
  exec 9>"$CLUSTER_CACHE/release.lock"   # two tests at once
  flock 9
  if [ ! -e "$venv/.complete" ]; then
    rm -rf "$CLUSTER_CACHE"/release-*/
    "$CLUSTER_REPO/.venv/bin/python" -m venv --without-pip "$venv"
    "$uv" pip sync --quiet --python "$venv/bin/python" --require-hashes "$lock"
    touch "$venv/.complete"
  fi
fi
echo "$venv/bin"
