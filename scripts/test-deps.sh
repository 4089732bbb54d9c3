#!/usr/bin/env bash
# Installs the optional programs that some tests use, as root on Debian: gRPC, pip and venv for Python (its package) and jq (it
# checks an export). Where they are missing and cannot be installed, those tests are skipped.
set -euo pipefail

packages=(python3-grpcio jq)

# missing prints each missing program by its use and not by its package: other systems have other package names.
missing() {
  command -v jq >/dev/null || printf ' jq'
  /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null ||
    python3 -c 'import grpc, google.protobuf' 2>/dev/null || printf ' python3:grpc'
}

install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "${packages[@]}" && return
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

[ -n "$(missing)" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${packages[*]} for tests"
  install >/dev/null 2>&1 || true
fi
still=$(missing)
[ -z "$still" ] || echo "tests will be skipped, missing:$still (Debian: apt-get install ${packages[*]})"
