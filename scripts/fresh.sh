#!/usr/bin/env bash
# Runs the README's commands, make run and make test, and the first hour of a user, on a fresh machine: a minimal Debian or Ubuntu root with git, make,
# a C compiler and the Go toolchain in use. It tests the last commit. It needs root on Debian or Ubuntu.
# The root is cached in ${XDG_CACHE_HOME:-~/.cache}/brokerd-fresh; remove that folder to build it again.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "make fresh: $*" >&2; exit 1; }

section() { printf '\n=== %s\n\n' "$*"; }

# inside runs in the root. It is passed to a new shell as text.
inside() {
  cd /srv/brokerd
  section "make run"
  set -m # a process group for make and the daemon, to stop both as Ctrl-C does
  make run >/srv/run.log 2>&1 &
  local make=$!
  SECONDS=0
  until grep -q '"msg":"started"' /srv/run.log; do
    kill -0 "$make" 2>/dev/null || { cat /srv/run.log; fail "make run failed"; }
    sleep 1
  done
  cat /srv/run.log
  local build=$SECONDS
  bin/brokerctl ping || fail "the daemon does not answer"
  section "the first hour of a user"
  PATH=$PWD/bin:$PATH scripts/first-hour.sh || fail "the first hour fails"
  kill -INT -- "-$make"
  wait "$make" 2>/dev/null || true # make reports the signal
  ! bin/brokerctl ping >/dev/null 2>&1 || fail "the daemon still answers after SIGINT"
  set +m

  section "make test"
  SECONDS=0
  make test || fail "make test failed after $SECONDS s (make run took $build s)"
  section "passed: make run took $build s, make test $SECONDS s"
}

[ "$(id -u)" = 0 ] || fail "needs root, for debootstrap and chroot"
# shellcheck source=/dev/null
. /etc/os-release 2>/dev/null || true
case " ${ID:-} ${ID_LIKE:-} " in
*" debian "*) ;;
*) fail "needs Debian or Ubuntu" ;;
esac
command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap >/dev/null 2>&1 ||
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap; } >/dev/null 2>&1 ||
  fail "needs debootstrap, and apt-get cannot install it"
[ -z "$(git status --porcelain)" ] || echo "make fresh: uncommitted changes are not part of the test" >&2

cache=${XDG_CACHE_HOME:-$HOME/.cache}/brokerd-fresh
base=$cache/$VERSION_CODENAME
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/run.XXXXXX")
child=
cleanup() {
  # The only child of unshare is the first process of its PID namespace: its end ends all others and their mounts.
  [ -z "$child" ] || { kill -KILL $(cat "/proc/$child/task/$child/children") && wait "$child"; } 2>/dev/null || true
  rm -rf --one-file-system "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

if ! [ -d "$base" ]; then
  section "debootstrap $VERSION_CODENAME"
  eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
  export http_proxy https_proxy
  # shellcheck disable=SC2016 # apt-get expands the fields
  mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' |
    awk -v release="$VERSION_CODENAME" '$1 == release && !found { print $2; found = 1 }')
  debootstrap --variant=minbase --include=git,make,gcc,libc6-dev,ca-certificates \
    "$VERSION_CODENAME" "$scratch/base" "$mirror" >"$scratch/log" 2>&1 ||
    { tail -20 "$scratch/log" "$scratch/base/debootstrap/debootstrap.log" >&2; fail "debootstrap failed"; }
  mv "$scratch/base" "$base"
fi

section "a copy of $base, with $(go version)"
root=$scratch/root
cp -a "$base" "$root"
cp -a "$(go env GOROOT)" "$root/usr/local/go"
git clone --quiet "$PWD" "$root/srv/brokerd"

# The network settings of the caller: names, certificates, package mirrors. The hooks of its apt need its programs.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root"/etc/apt/sources.list*
for part in sources.list sources.list.d auth.conf auth.conf.d trusted.gpg trusted.gpg.d keyrings; do
  [ ! -e "/etc/apt/$part" ] || cp -a "/etc/apt/$part" "$root/etc/apt/"
done
cp -a /usr/share/keyrings "$root/usr/share/"
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf"

environment=(HOME=/root LANG=C.UTF-8 PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in GOPROXY GOSUMDB GONOPROXY GONOSUMDB GOPRIVATE GOINSECURE GOFLAGS GOTOOLCHAIN; do
  environment+=("$name=$(go env "$name")")
done
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done

# The mounts exist only in the namespace, so they end with it. Job control keeps SIGINT from being ignored inside.
set -m
unshare --mount --pid --fork --kill-child bash -c '
  root=$1; shift
  mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && exec chroot "$root" "$@"
' bash "$root" /usr/bin/env -i "${environment[@]}" \
  bash -euo pipefail -c "$(declare -f fail section inside); inside" </dev/null &
child=$!
wait "$child" || { child=; fail "failed, see above"; }
child=
