#!/usr/bin/env bash
# Generates clients/typescript/src/gen from proto/. It needs Node 20 or newer and the packages of
# clients/typescript (`npm ci` there); without them it changes nothing and says so.
set -euo pipefail
cd "$(dirname "$0")/.."

plugin=clients/typescript/node_modules/.bin/protoc-gen-es
node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null && [ -x "$plugin" ] || {
  echo "TypeScript's generated code was not regenerated: it needs Node 20 or newer and \`npm ci\` in clients/typescript"
  exit 0
}
exec bin/tools/buf generate proto --template '{"version": "v2", "clean": true, "plugins": [
  {"local": "'"$plugin"'", "out": "clients/typescript/src/gen", "opt": ["target=ts", "import_extension=js"]}]}'
