#!/usr/bin/env bash
# Installs the optional programs that some tests use: packages of npm below two folders, and as root on Debian packages
# with apt-get. It says what and why before. Tests are skipped whose programs are missing and cannot be installed.
# TEST_DEPS=skip installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null; }
grpc() { /usr/bin/python3 -c 'import grpc, google.protobuf' || python3 -c 'import grpc, google.protobuf'; }
postgres() { has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb'; }
pip() { /usr/bin/python3 -c 'import setuptools, ensurepip, pip, wheel'; }

# Each line has Debian's packages, what they are for, and the command that succeeds if they are here. Ubuntu has no package
# chromium, so it comes in a call of its own.
needs=(
  "python3-grpcio;the tests of the Python package;grpc"
  "python3-pip python3-setuptools python3-venv python3-wheel;the test that installs the Python package;pip"
  "postgresql;the tests on PostgreSQL;postgres"
  "jq;the test that reads an export;has jq"
  "tmux;the tests of an agent in a terminal;has tmux"
  "chromium;the tests of the dashboard;has chromium"
)

# missing calls a function with the packages and their use for each line that is not here.
missing() {
  local need packages use check
  for need in "${needs[@]}"; do
    IFS=';' read -r packages use check <<<"$need"
    $check >/dev/null 2>&1 || "$1" "$packages" "$use"
  done
}

wanted=() chromium=
announce() {
  echo "apt-get installs $1, for $2 (TEST_DEPS=skip: it does not)"
  local names
  read -ra names <<<"$1"
  if [ "$1" = chromium ]; then chromium=$1; else wanted+=("${names[@]}"); fi
}
skipped() { echo "$2 will be skipped, because $1 is missing"; }

install() {
  [ $# -gt 0 ] || return 0
  export DEBIAN_FRONTEND=noninteractive
  { apt-get install -y -qq --no-install-recommends "$@" ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; }; } >/dev/null 2>&1 || true
}

# node_packages installs the npm packages that some tests need, for any user. They are pinned by the package-lock.json of
# a folder and stay below it.
node_packages() {
  local folder=$1 use=$2
  [ ! "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ] || return 0
  if [ "${TEST_DEPS:-}" = skip ]; then
    skipped "$folder/node_modules" "$use"
  elif ! has npm || ! node -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)' 2>/dev/null; then
    skipped "Node 20 or newer with npm" "$use"
  else
    echo "npm installs the packages of $folder below that folder, for $use (TEST_DEPS=skip: it does not)"
    (cd "$folder" && npm ci --silent --no-audit --no-fund) || skipped "what npm ci installs in $folder" "$use"
  fi
}

node_packages clients/typescript "the tests of the TypeScript client"
node_packages internal/web/testdata/openapi "the tests of clients from the OpenAPI document"
if [ "${TEST_DEPS:-}" != skip ] && [ "$(id -u)" = 0 ] && has apt-get; then
  missing announce
  install ${wanted[@]+"${wanted[@]}"}
  [ -z "$chromium" ] || install chromium
fi
missing skipped
