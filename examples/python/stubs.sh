#!/bin/sh
# Makes the Python stubs of the API in the folder given.
set -eu
out=${1:?usage: stubs.sh FOLDER}
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
protoc -I "$root/proto" --python_out="$out" --grpc_python_out="$out" \
    --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" "$root"/proto/brokerd/v1/*.proto
