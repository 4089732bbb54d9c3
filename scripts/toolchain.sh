#!/usr/bin/env bash
# Checks that Go and a C compiler are here, before make builds something. It prints one sentence about what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "make: $*" >&2; exit 1; }

needed=$(sed -n 's/^go //p' go.mod)
command -v go >/dev/null || fail "Go is missing: install Go $needed or newer (https://go.dev/dl/)."

# In this folder Go 1.21 and newer fetches the version of go.mod by itself, unless GOTOOLCHAIN or the network forbids it.
if ! version=$(go env GOVERSION 2>/dev/null); then
  fail "Go $needed or newer is needed, and $(cd / && GOTOOLCHAIN=local go env GOVERSION) cannot fetch it: install it (https://go.dev/dl/), or set GOTOOLCHAIN=auto."
fi
number=${version#go}
if [[ $number =~ ^[0-9] ]] && [ "$(printf '%s\n' "$needed" "$number" | sort -V | head -1)" != "$needed" ]; then
  fail "Go $needed or newer is needed, and this is $version: install a newer one (https://go.dev/dl/)."
fi

[ "$(go env CGO_ENABLED)" = 1 ] ||
  fail "cgo is off, and SQLite is C: unset CGO_ENABLED, and install a C compiler (Debian: apt-get install gcc libc6-dev)."
read -ra compiler <<<"$(go env CC)"
command -v "${compiler[0]}" >/dev/null ||
  fail "the C compiler ${compiler[0]} is missing, and SQLite is C: install it (Debian: apt-get install gcc libc6-dev), or name another one in CC."
# A pipe would fail with a compiler that ends before it has read the text.
"${compiler[@]}" -E -x c - <<<'#include <stdlib.h>' >/dev/null 2>&1 ||
  fail "the C compiler ${compiler[0]} does not find stdlib.h: install the headers of the C library (Debian: apt-get install libc6-dev)."
