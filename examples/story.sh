# Sourced by the examples. It runs the example on a separate broker and in an empty folder, both of
# which end with it, and defines the functions that print the story. If a command does not end as
# the story says, the example fails.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
export PATH="$PATH:$here/../../bin"
for program in brokerd brokerctl jq; do
  command -v "$program" >/dev/null || { echo "$0 needs $program in PATH" >&2; exit 1; }
done
[ -n "${STORY-}" ] || STORY=1 exec brokerd exec -- bash "$here/${0##*/}"

folder=$(mktemp -d)
cd "$folder"
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
unset BROKERD_OUTPUT

patience=60s # how long a story waits for what should come at once
said=        # the output of the last command

title() { printf '%s\n' "$1"; }
scene() { printf '\n-- %s\n' "$1"; }

# as [CODE] AGENT COMMAND... runs a command of brokerctl as an agent, or as operator, and prints it
# with its output. CODE is the exit code that the story expects (0).
as() {
  local want=0 code=0
  case $1 in [0-9]*) want=$1; shift ;; esac
  print_command "$@"
  said=$(run "$@") || code=$?
  print_output
  [ "$code" = "$want" ] || fail "exit code $code instead of $want"
}

# quietly AGENT COMMAND... is as, without the output.
quietly() {
  print_command "$@"
  said=$(run "$@") || { print_output; fail "exit code $?"; }
}

# team AGENT... registers agents; the role of builder-1 is builder.
team() {
  local agent
  for agent in "$@"; do quietly operator agent register "$agent" --role "${agent%-[0-9]}"; done
}

# begin AGENT COMMAND... starts a command that waits for another agent. finish [CODE] AGENT... waits
# for the end of such commands and prints their output, in the order of the text.
begin() {
  print_command "$@"
  BROKERD_AGENT=${1#operator} brokerctl --relative "${@:2}" >"begun-$1" 2>&1 &
  echo $! >"begun-$1.job"
}

finish() {
  local agent code=0 want=0
  case $1 in [0-9]*) want=$1; shift ;; esac
  for agent in "$@"; do
    wait "$(cat "begun-$agent.job")" || code=$?
    printf '%-12s  (its command ends)\n' "$agent"
  done
  if [ $# = 1 ]; then said=$(cat "begun-$1"); else said=$(sort "${@/#/begun-}"); fi
  print_output
  [ "$code" = "$want" ] || fail "exit code $code instead of $want"
}

# kill_begun AGENT kills the command that begin has started.
kill_begun() {
  local job
  job=$(cat "begun-$1.job")
  kill -9 "$job"
  wait "$job" 2>/dev/null || true
  printf '%-12s  (is killed: kill -9)\n' "$1"
}

# end_begun AGENT... asks the commands that begin has started to end.
end_begun() {
  local agent
  for agent in "$@"; do
    kill "$(cat "begun-$agent.job")"
    finish "$agent"
  done
}

# check TEXT FILTER COMMAND... asks the broker, and ends the story unless the jq filter accepts the
# objects that the command prints.
check() {
  brokerctl "${@:3}" -o json >answer
  jq -e -s "$2" answer >/dev/null || { cat answer >&2; fail "it is not true that $1"; }
  printf '%-12s  %s\n' "=>" "$1"
}

# show FILTER COMMAND... prints what the jq filter makes of the objects that the command prints.
show() {
  said=$(brokerctl "${@:2}" -o json | jq -r "$1")
  print_output
}

# until_event N TYPE waits until the log has N events of this type.
until_event() {
  timeout "$patience" brokerctl event follow --after 0 --limit "$1" --type "$2" >/dev/null ||
    fail "$1 events $2 have not come"
}

# the_end FLAG... prints the events that brokerctl event list prints with these flags, each with the
# agent that caused it, and checks that the team leaves nothing stuck and the database whole.
the_end() {
  scene "What the event log says"
  brokerctl event list --limit 0 "$@" -o json | jq -r '(.source + " " * 14)[:14] + .summary'
  brokerctl admin check >/dev/null || fail "the database is damaged"
  said=$(run operator explain)
  [ "$said" = "nothing is stuck" ] || { print_output; fail "something is stuck"; }
}

# number TEXT prints the first number after TEXT in the output of the last command, such as the id in
# "sent 4711" or the number of the handoff h-4711.
number() { grep -oE "(^|[^a-z])$1[0-9]+" <<<"$said" | head -1 | grep -oE '[0-9]+$'; }

fail() { echo "${here##*/}: $1" >&2; exit 1; }

# --relative keeps the time of the day out of the story.
run() { BROKERD_AGENT=${1#operator} brokerctl --relative "${@:2}" 2>&1; }

print_command() {
  local word line=
  for word in "${@:2}"; do
    case $word in
      *[\"\$\`\\]*) word="'$word'" ;;
      *[!A-Za-z0-9_./:=@%,+-]* | "") word="\"$word\"" ;;
    esac
    line+=" $word"
  done
  printf '%-12s  $ brokerctl%s\n' "$1" "$line"
}

print_output() { [ -z "$said" ] || sed 's/^\(.\)/                \1/' <<<"$said"; }
