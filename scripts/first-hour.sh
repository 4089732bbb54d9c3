#!/usr/bin/env bash
# Plays the first hour of a user against the broker that runs: three coding agents in one folder, set up with names and
# roles. Their MCP servers and hooks are started as setup wrote them. brokerctl must be in PATH; needs git and perl.
set -euo pipefail

fail() { echo "first hour: $*" >&2; exit 1; }

expect() { # TEXT in the output of a command
  local text=$1 out
  shift
  out=$("$@" 2>&1) || fail "$* ended with code $?: $out"
  [[ $out == *"$text"* ]] || fail "$* does not print \"$text\" but: $out"
}

# words prints the words of the first list or command in files of a vendor that a pattern finds.
words() { # PATTERN FILE...
  local pattern=$1
  shift
  pattern=$pattern perl -0ne 'if (/$ENV{pattern}/) { $_ = $1; s/[",]/ /g; print; exit }' "$@"
}

declare -A in out pid
id=0

# serve starts the MCP server of a vendor as its settings say.
serve() { # VENDOR FILE...
  local vendor=$1 args
  shift
  args=$(words 'args"?\s*[:=]\s*\[([^\]]*"mcp"[^\]]*)\]' "$@")
  [ -n "$args" ] || fail "$vendor: no MCP server in $*"
  mkfifo "$work/$vendor.in" "$work/$vendor.out"
  # shellcheck disable=SC2086 # words
  brokerctl $args <"$work/$vendor.in" >"$work/$vendor.out" 2>"$work/$vendor.log" &
  pid[$vendor]=$!
  exec {in[$vendor]}>"$work/$vendor.in" {out[$vendor]}<"$work/$vendor.out"
  ask "$vendor" initialize '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"first-hour","version":"1"}}' >/dev/null
  echo '{"jsonrpc":"2.0","method":"notifications/initialized"}' >&"${in[$vendor]}"
}

# ask makes a request to a server and prints the line with its answer.
ask() { # VENDOR METHOD PARAMS
  local line
  id=$((id + 1))
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"method\":\"$2\",\"params\":$3}" >&"${in[$1]}"
  while read -r -t 60 line <&"${out[$1]}"; do
    [[ $line == *"\"id\":$id"* ]] && { echo "$line"; return; }
  done
  fail "the MCP server of $1 does not answer: $(cat "$work/$1.log")"
}

call() { # VENDOR TOOL ARGUMENTS
  ask "$1" tools/call "{\"name\":\"$2\",\"arguments\":$3}"
}

leave() { # VENDOR
  local fd=${in[$1]}
  exec {fd}>&-
  wait "${pid[$1]}" || fail "the MCP server of $1 ended with code $?"
}

# hook runs the hook of a vendor as its settings say, and prints what it says. Its exit code is that of the hook.
hook() { # SESSION EVENT TOOL INPUT FILE
  local input="{\"session_id\":\"$1\",\"cwd\":\"$PWD\",\"hook_event_name\":\"$2\",\"tool_name\":\"$3\",\"tool_input\":$4}"
  shift 4
  # shellcheck disable=SC2046 # words
  $(words '"(brokerctl hook [^"]*)"' "$@") <<<"$input" 2>&1
}

work=$(mktemp -d)
trap 'kill "${pid[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$work/project/src"
cd "$work/project"
git init --quiet .

echo "setup of three vendors in one folder"
expect claude-1 brokerctl setup claude-code --agent claude-1 --role lead
expect codex-1 brokerctl setup codex --agent codex-1 --role builder
expect gemini-1 brokerctl setup gemini --agent gemini-1 --role reviewer

echo "each MCP server acts under its own name and role, in any order of start"
serve codex .codex/config.toml
serve gemini .gemini/settings.json
serve claude .mcp.json
for each in codex:codex-1:builder gemini:gemini-1:reviewer claude:claude-1:lead; do
  IFS=: read -r vendor agent role <<<"$each"
  answer=$(call "$vendor" turn '{}')
  [[ $answer == *"You are the agent $agent ($role)"* ]] || fail "$vendor is not $agent ($role): $answer"
done

echo "a file that one writes is locked for the others"
patch='{"command":"*** Begin Patch\n*** Update File: src/a.go\n@@\n-x\n+y\n*** End Patch"}'
write="{\"file_path\":\"$PWD/src/a.go\"}"
hook s1 PreToolUse apply_patch "$patch" .codex/hooks.json || fail "codex may not write a free file"
! refused=$(hook s2 PreToolUse Write "$write" .claude/settings.json) || fail "claude may write the file of codex: $refused"
[[ $refused == *"src/a.go is held by codex-1"* ]] || fail "claude is told: $refused"
! refused=$(hook s3 BeforeTool write_file "$write" .gemini/settings.json) || fail "gemini may write the file of codex: $refused"

echo "a message from a person is answered, and the answer is shown"
expect codex-1 brokerctl --agent '' send codex-1 "Which branch do you use?" --requires-response
answer=$(call codex turn '{}')
[[ $answer == *"Which branch do you use?"* ]] || fail "codex gets: $answer"
answer=$(call codex settle '{"text":"main"}')
[[ $answer != *'"isError":true'* ]] || fail "codex cannot answer: $answer"
expect main brokerctl inbox --operator
reply=$(brokerctl inbox --operator -o json | perl -ne 'print $1 if /"id":"([^"]+)"/')
expect "" brokerctl --agent '' ack "$reply"

echo "nothing is stuck, and programs that end well have stopped"
expect "nothing is stuck" brokerctl explain
for vendor in claude gemini codex; do leave "$vendor"; done # a later one has inherited the input of the earlier ones
for each in s1:.codex/hooks.json s2:.claude/settings.json s3:.gemini/settings.json; do
  hook "${each%%:*}" SessionEnd "" '{}' "${each#*:}" || fail "the hook at the end of session $each fails"
done
for agent in claude-1 codex-1 gemini-1; do
  expect stopped brokerctl agent get "$agent"
done
expect "nothing is stuck" brokerctl explain
! brokerctl agent list | grep -w failed || fail "an agent has failed"
echo "passed in $SECONDS s"
