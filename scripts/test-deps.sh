#!/usr/bin/env bash
# Installs the optional programs that some tests use, as root on Debian: gRPC, pip and venv for the Python package,
# jq, which checks an export, tmux, the terminal of `agent run --pty`, and Chromium, which shows the dashboard. Where they are
# missing and cannot be installed, those tests are skipped.
set -euo pipefail

packages=(python3-grpcio python3-pip python3-setuptools python3-venv python3-wheel jq tmux)

# missing prints each missing program by its use and not by its package: other systems have other package names.
missing() {
  command -v jq >/dev/null || printf ' jq'
  command -v tmux >/dev/null || printf ' tmux'
  command -v chromium >/dev/null || printf ' chromium'
  /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null ||
    python3 -c 'import grpc, google.protobuf' 2>/dev/null || printf ' python3:grpc'
  /usr/bin/python3 -c 'import setuptools, ensurepip, pip, wheel' 2>/dev/null || printf ' python3:pip,setuptools,venv,wheel'
}

install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "$@" && return
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
}

# node_packages installs the npm packages that some tests need, for any user. They are pinned by the package-lock.json of
# a folder and stay below it.
node_packages() {
  local folder=$1 tests=$2
  cd "$(dirname "$0")/../$folder"
  if ! command -v npm >/dev/null || ! node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null; then
    echo "tests of $tests will be skipped, missing: Node 20 or newer with npm"
  elif [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    echo "installing the packages of $folder for tests"
    npm ci --silent --no-audit --no-fund || echo "tests of $tests will be skipped: npm ci failed in $folder"
  fi
}

(node_packages clients/typescript "the TypeScript client")
(node_packages internal/web/testdata/openapi "clients from the OpenAPI document")
[ -n "$(missing)" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${packages[*]} chromium for tests"
  install "${packages[@]}" >/dev/null 2>&1 || true
  install chromium >/dev/null 2>&1 || true # not in the same call: Ubuntu has no such package
fi
still=$(missing)
[ -z "$still" ] || echo "tests will be skipped, missing:$still (Debian: apt-get install ${packages[*]} chromium)"
