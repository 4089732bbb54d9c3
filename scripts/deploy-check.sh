#!/usr/bin/env bash
# Checks the files of deploy/ with programs that are too heavy for make test: the Kubernetes manifests against the
# schemas of the API server, the Compose files against the Compose specification, and the image, which it builds with
# buildah as root. Without buildah it checks no image, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/bin/tools
kubernetes=1.30 # the newest whose schemas kubectl-validate contains

fail() { echo "make deploy-check: $*" >&2; exit 1; }

# tool installs a program of a Go module as bin/tools/NAME, unless it is there.
tool() {
  [ -x "$tools/$1" ] && return
  echo "building $2"
  local scratch
  scratch=$(mktemp -d)
  GOBIN=$scratch go install "$2"
  mkdir -p "$tools"
  mv "$scratch"/* "$tools/$1"
  rmdir "$scratch"
}

# image builds the last stage of the Dockerfile from programs that are built here, since the image of the first stage
# may be out of reach, and runs them from its root as its user.
image() {
  if ! command -v buildah >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "deploy/Dockerfile: not checked, since that needs buildah as root (Debian: apt-get install buildah)"
    return
  fi
  local scratch root container
  scratch=$(mktemp -d)
  mkdir -p "$scratch/out/data"
  CGO_ENABLED=1 go build -trimpath -o "$scratch/out/" -tags osusergo,netgo,sqlite_omit_load_extension \
    -ldflags '-s -w -linkmode external -extldflags "-static -Wl,--build-id=none"' ./cmd/brokerd ./cmd/brokerctl
  export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
  local store=(--root "$scratch/store" --runroot "$scratch/run")
  buildah bud "${store[@]}" --quiet --format docker --pull=never --build-context "build=$scratch" \
    -f deploy/Dockerfile -t brokerd "$scratch" >/dev/null
  container=$(buildah "${store[@]}" from --pull=never brokerd)
  root=$(buildah "${store[@]}" mount "$container")
  chroot --userspec=10001:10001 "$root" /usr/local/bin/brokerd --data /var/lib/brokerd/data --log-level warn &
  local daemon=$! answered=0
  chroot --userspec=10001:10001 "$root" /usr/bin/env true 2>/dev/null && fail "the image has more than brokerd and brokerctl"
  BROKERD_DATA=/var/lib/brokerd/data chroot --userspec=10001:10001 "$root" /usr/local/bin/brokerctl ping --wait 30s || answered=$?
  kill "$daemon"
  wait "$daemon" || answered=$?
  buildah "${store[@]}" rm "$container" >/dev/null
  buildah "${store[@]}" rmi brokerd >/dev/null
  rm -rf "$scratch"
  [ "$answered" = 0 ] || fail "the image does not run"
  echo "deploy/Dockerfile: its last stage was built and runs as user 10001"
}

tool kubectl-validate sigs.k8s.io/kubectl-validate@v0.0.4
tool compose-go github.com/compose-spec/compose-go/v2/cmd@v2.16.2

for manifest in deploy/kubernetes.yaml deploy/kubernetes-replicas.yaml; do
  "$tools/kubectl-validate" --version "$kubernetes" "$manifest"
done
for compose in deploy/compose.yaml deploy/compose-replicas.yaml; do
  "$tools/compose-go" "$compose" >/dev/null
  echo "$compose: valid"
done
image
