#!/usr/bin/env bash
# Builds a release of the last commit in dist/: for each architecture, an archive with static programs,
# man pages, completions and documentation, and a bill of materials; and one file of checksums. It skips
# an architecture whose C compiler is missing. With the same Go and C compilers, the same commit gives
# the same files: the script builds the programs for this machine a second time, in another folder and
# without a cache, and compares them.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "make release: $*" >&2; exit 1; }

[ -z "$(git status --porcelain)" ] || fail "commit the changes first, or put them away: a release is built from a commit"
host=$(go env GOHOSTOS)-$(go env GOHOSTARCH)
version=$(cat VERSION)
commit=$(git rev-parse HEAD)
time=$(git log -1 --format=%ct)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022
export LC_ALL=C

# compiler prints the name of the C compiler for an architecture.
compiler() {
  case $1 in
  "$host") go env CC ;;
  linux-amd64) echo x86_64-linux-gnu-gcc ;;
  linux-arm64) echo aarch64-linux-gnu-gcc ;;
  esac
}

# build builds both programs for an architecture; it fails if there is no C compiler that links statically.
build() {
  local cc
  cc=$(compiler "$1")
  if ! echo 'int main(void) { return 0; }' | "$cc" -static -x c -o "$scratch/probe" - 2>/dev/null; then
    echo "make release: skipped $1: $cc or its static C library is missing" >&2
    return 1
  fi
  compile "$1" "$scratch/$1"
}

# compile builds both programs of the working folder for an architecture into a folder.
compile() {
  # SQLite needs no extensions, and a static program cannot load any.
  CGO_ENABLED=1 GOOS=linux GOARCH=${1#linux-} CC=$(compiler "$1") go build -o "$2/" -trimpath -buildvcs=true \
    -tags osusergo,netgo,sqlite_omit_load_extension \
    -ldflags '-s -w -linkmode external -extldflags "-static -Wl,--build-id=none"' ./cmd/brokerd ./cmd/brokerctl
}

# reproduce builds the programs for this machine again, in a clone, and compares.
reproduce() {
  git clone --quiet . "$scratch/elsewhere"
  (cd "$scratch/elsewhere" && GOCACHE=$scratch/cache compile "$host" "$scratch/again")
  local program
  for program in brokerd brokerctl; do
    cmp "$scratch/$host/$program" "$scratch/again/$program" || fail "a second build of $program differs"
  done
  echo "make release: two builds of $host in different folders, with separate caches, have the same bytes"
}

# describe writes the bill of materials of an architecture.
describe() {
  local header sqlite
  header=$(go list -m -f '{{.Dir}}' github.com/mattn/go-sqlite3)/sqlite3-binding.h
  sqlite=$(awk '/^#define SQLITE_VERSION / { gsub(/"/, "", $3); print $3 }' "$header")
  "$scratch/sbom" -version "$version" -sqlite "$sqlite" "$scratch/$1/brokerd" "$scratch/$1/brokerctl" \
    >"dist/brokerd-$version-$1.cdx.json"
}

# pack makes the archive of an architecture. Unpacked into a prefix, everything is in its place.
pack() {
  local name=brokerd-$version-$1
  local doc=$scratch/$name/share/doc/brokerd
  scripts/install.sh "$scratch/$1" "$scratch/$name" "$scratch/$host"
  mkdir -p "$doc"
  git ls-files -z README.md CHANGELOG.md 'LICENSE*' 'docs/*.md' deploy examples clients/python proto ':!:*_test.go' |
    xargs -0 git archive HEAD | tar -x -C "$doc"
  tar -C "$scratch" --sort=name --mtime="@$time" --owner=0 --group=0 --numeric-owner -cf - "$name" |
    gzip -9n >"dist/$name.tar.gz"
}

case $host in linux-amd64 | linux-arm64) ;; *) fail "needs Linux on amd64 or arm64" ;; esac
build "$host" || fail "cannot build for this machine"
built=$("$scratch/$host/brokerd" --version)
[ "$built" = "brokerd $version (${commit:0:12})" ] || fail "built $built, not $version of commit $commit"
reproduce
go build -o "$scratch/sbom" ./scripts/sbom
rm -rf dist
mkdir dist
for target in linux-amd64 linux-arm64; do
  if [ "$target" = "$host" ] || build "$target"; then
    pack "$target"
    describe "$target"
  fi
done
cd dist
sha256sum -- *.tar.gz *.cdx.json | tee SHA256SUMS
