#!/usr/bin/env bash
# Makes sure of what the test of examples/python needs: Debian's gRPC for Python and the compiler for its
# stubs; and of jq, with which an export is checked. They are optional: where they are missing and cannot be installed, those
# tests skip themselves.
set -euo pipefail

packages=(python3-grpcio protobuf-compiler protobuf-compiler-grpc jq)

# missing prints what the test would not find, by what it uses and not by package: other systems name them otherwise.
missing() {
  command -v jq >/dev/null || printf ' jq'
  command -v protoc >/dev/null || printf ' protoc'
  command -v grpc_python_plugin >/dev/null || printf ' grpc_python_plugin'
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
