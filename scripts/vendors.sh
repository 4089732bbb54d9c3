#!/usr/bin/env bash
# Runs command lines of MCP clients and coding agents, installed from npm into a scratch folder,
# against brokerctl. Each function vendor_NAME is one of them; the arguments choose some, the default
# is all. It prints the versions that it tests, and fails on the first error, or after 20 minutes. It
# needs npm and jq, and skips without them. It contacts the npm registry and loopback only.
# VENDORS_DIR keeps the installed programs for the next run. VENDORS_NEWEST=1 tries the newest versions in place of
# those that brokerctl setup names as tested.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in npm jq; do
  command -v "$program" >/dev/null || { echo "vendors: skipped, $program is missing"; exit 0; }
done

claude_code=@anthropic-ai/claude-code@2.1.330 codex=@openai/codex@0.169.0 gemini=@google/gemini-cli@0.61.0 opencode=opencode-ai@1.18.33
if [ -n "${VENDORS_NEWEST:-}" ]; then
  for program in claude_code codex gemini opencode; do
    declare "$program=${!program%@[0-9]*}"
  done
fi

scratch=$(mktemp -d)
export TMPDIR=$scratch
programs=${VENDORS_DIR:-$scratch/programs}
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  wait || true
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# within COMMAND... runs a command in what is left of the 20 minutes.
within() { timeout --kill-after=10 "$((SECONDS < 1200 ? 1200 - SECONDS : 1))" "$@"; }

# install PACKAGE [OPTION...] installs a package from npm, prints its version, and puts its programs
# first in PATH.
install() {
  mkdir -p "$programs"
  [ -f "$programs/package.json" ] || echo '{}' >"$programs/package.json"
  within npm install --prefix "$programs" --no-audit --no-fund --no-update-notifier --loglevel=error "$@" >/dev/null
  jq -r '"\(.name) \(.version)"' "$programs/node_modules/${1%@[0-9]*}/package.json"
  PATH=$programs/node_modules/.bin:$PATH
}

# project NAME PACKAGE installs a program, makes an empty project folder with its own home folder, and
# enters it. The program and its installation scripts get a proxy that refuses every connection, and
# no retries: opencode installs its own packages at its start.
project() {
  install "$2" --ignore-scripts
  mkdir -p "$scratch/$1/home" "$scratch/$1/project"
  export HOME=$scratch/$1/home
  export {HTTP,HTTPS,ALL}_PROXY=http://127.0.0.1:9 {http,https,all}_proxy=http://127.0.0.1:9
  export {NO_PROXY,no_proxy}=127.0.0.1,localhost,::1 npm_config_fetch_retries=0
  within npm rebuild --prefix "$programs" --no-update-notifier --loglevel=error "$2" >/dev/null
  cd "$scratch/$1/project"
}

# vendor_inspector calls each tool of brokerctl mcp, and tools at /mcp, with the command line of the MCP
# inspector. Its exit code is not 0 if a tool returns an error.
vendor_inspector() {
  project inspector @modelcontextprotocol/inspector
  local registration=()
  inspect() {
    within mcp-inspector --cli brokerctl mcp --agent inspector --role tester -e "BROKERD_DATA=$BROKERD_DATA" -e "HOME=$HOME" \
      "${registration[@]}" "$@"
  }
  # call PATTERN TOOL [ARGUMENT=VALUE...] checks that the text of the result has a line with the pattern.
  call() {
    local pattern=$1 tool=$2 arguments=() result
    shift 2
    for a in "$@"; do arguments+=(--tool-arg "$a"); done
    result=$(inspect --method tools/call --tool-name "$tool" "${arguments[@]}") &&
      jq -er '.content[0].text' <<<"$result" | grep -q "$pattern" ||
      { echo "$tool $*: no line with $pattern:" >&2; echo "$result" >&2; return 1; }
  }
  local tools='[.tools[].name] | sort == ["decide", "lock", "mail", "send", "settle", "state", "task", "team", "turn"]'
  inspect --strict --method tools/list | jq -e "$tools" >/dev/null
  call 'You are the agent inspector (tester)' turn
  # Each call is a server of its own. One that finds the registration of its parent leaves it, with all that the agent holds.
  registration=(-e BROKERD_AGENT=inspector -e "BROKERD_INCARNATION=$(brokerctl agent register inspector -o json | jq .incarnation)")
  brokerctl agent register lead --role lead >/dev/null
  brokerctl --agent lead send inspector "Look at a.go" >/dev/null
  call 'Subject: Look at a.go' turn wait=5
  call 'replied\|sent' settle as=reply 'text=I looked'
  call 'sent .* to lead' send to=lead 'text=Done'
  call 'a.go' lock action=acquire 'paths=["a.go"]'
  call 'released' lock action=release paths=all
  call 'step' state action=put key=step value=3
  call '^3$' state action=get key=step
  call 'schema' task action=create id=schema 'title=Write the schema'
  call 'Write the schema' task action=claim id=schema
  call 'completed schema' settle id=schema text=written
  call 'd-' decide action=question to=lead 'about=Which database?' 'options=["sqlite","postgres"]'
  call 'agent lead' team
  # The same tools over HTTP, as the agent of a credential.
  local url secret
  url=$(brokerctl dashboard | sed -n 's,^.*\(http://[0-9.:]*\)/.*,\1/mcp,p')
  brokerctl credential issue agent web --role tester --out web.credential >/dev/null
  secret=$(cat web.credential)
  inspect() { within mcp-inspector --cli "$url" --transport http --header "Authorization: Bearer $secret" "$@"; }
  inspect --strict --method tools/list | jq -e "$tools" >/dev/null
  call 'You are the agent web' turn
  brokerctl --agent lead send web "Look at b.go" >/dev/null
  call 'Subject: Look at b.go' turn wait=5
  call 'replied\|sent' settle as=reply 'text=I looked'
  call 'b.go' lock action=acquire 'paths=["b.go"]'
  call 'agent web' team
}

# files prints the files of the project with their checksums, without those that opencode itself puts
# into an existing folder .opencode.
files() {
  find . -type f -not -path './.opencode/node_modules/*' -not -name 'package*.json' -not -path './.opencode/.gitignore' \
    -exec sha256sum {} + | sort
}

# set_up VENDOR PATTERN COMMAND... runs brokerctl setup in the project, checks that the output of the
# vendor's own list command has a line with the pattern, and that setup changes nothing when it runs
# again and leaves nothing when it removes its additions.
set_up() {
  local vendor=$1 pattern=$2 before list
  shift 2
  before=$(files)
  brokerctl setup "$vendor" >/dev/null
  list=$(within "$@" </dev/null 2>&1) && grep -q "$pattern" <<<"$list" ||
    { echo "$*: no line with $pattern:" >&2; echo "$list" >&2; return 1; }
  brokerctl setup "$vendor" -o json | jq -e 'all(.changes[]; .action == "unchanged")' >/dev/null
  brokerctl setup "$vendor" --remove >/dev/null
  [ "$before" = "$(files)" ] || { echo "setup $vendor --remove left:" >&2; files >&2; return 1; }
}

# The following functions set the switches of the programs against telemetry and updates.

vendor_claude_code() {
  project claude-code "$claude_code"
  mkdir "$HOME/.claude"
  echo '{"mcpServers": {"other": {"command": "true"}}}' >.mcp.json
  export DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
  set_up claude-code '^brokerd: brokerctl mcp' claude mcp list
}

vendor_codex() {
  project codex "$codex"
  mkdir "$HOME/.codex" .codex
  printf '[projects."%s"]\ntrust_level = "trusted"\n' "$PWD" >"$HOME/.codex/config.toml"
  printf 'mcp_servers.other.command = "true" # dotted' >.codex/config.toml
  set_up codex '^brokerd .*brokerctl .*mcp .*enabled' codex mcp list
}

vendor_gemini() {
  project gemini "$gemini"
  mkdir "$HOME/.gemini" .gemini
  echo '{"general": {"enableAutoUpdate": false}, "privacy": {"usageStatisticsEnabled": false}}' >"$HOME/.gemini/settings.json"
  printf '// of the team\r\n{\r\n  "ui": {} // empty\r\n}\r\n' >.gemini/settings.json
  export GEMINI_CLI_TRUST_WORKSPACE=true GEMINI_TELEMETRY_ENABLED=false
  set_up gemini 'brokerd: brokerctl mcp .*Connected' gemini mcp list
}

vendor_opencode() {
  project opencode "$opencode"
  export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_SHARE=1
  set_up opencode 'brokerd .*connected' opencode mcp list
}

# vendor_receipts runs the programs against a fake model, and compares the receipts of messages with its requests. With the
# pinned versions it writes docs/compat-agents.md.
vendor_receipts() {
  local package
  [ -n "${VENDORS_NEWEST:-}" ] || export COMPAT_AGENTS=$PWD/docs/compat-agents.md
  for package in "$claude_code" "$codex" "$gemini" "$opencode"; do
    (project receipts "$package")
  done
  TEST_PROGRAMS=$scratch/bin VENDOR_PROGRAMS=$programs within go test -count=1 -timeout 30m ./internal/vendortest
}

install node@22 # the newest programs need it
make -s build BIN="$scratch/bin"
export PATH=$scratch/bin:$PATH BROKERD_DATA=$scratch/data
unset BROKERD_ADDR BROKERD_AGENT BROKERD_SESSION BROKERD_INCARNATION BROKERD_CREDENTIAL_FILE
brokerd >"$scratch/brokerd.log" 2>&1 &
daemon=$!
for _ in $(seq 150); do
  brokerctl ping >/dev/null 2>&1 && break
  kill -0 "$daemon" || { cat "$scratch/brokerd.log" >&2; exit 1; }
  sleep 0.2
done

[ $# -gt 0 ] || set -- $(compgen -A function | sed -n 's/^vendor_//p')
for vendor in "$@"; do
  echo "== $vendor"
  ("vendor_$vendor") # in a subshell: each vendor has its own folder, home and PATH
done
echo "vendors: all passed"
