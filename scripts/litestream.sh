#!/usr/bin/env bash
# Builds Litestream into bin/tools, unless it is there, and runs the tests of deploy/ that need it.
# It is not in tools/go.mod, whose modules it would force to other versions.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v0.5.18
program=$PWD/bin/tools/litestream

if [ "$("$program" version 2>/dev/null)" != "$version" ]; then
  echo "building Litestream $version"
  GOBIN=$PWD/bin/tools go install "github.com/benbjohnson/litestream/cmd/litestream@$version"
fi
LITESTREAM=$program go test -count=1 -run TestLitestream -timeout 1h -v ./deploy/
