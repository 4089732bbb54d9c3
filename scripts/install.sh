#!/usr/bin/env bash
# Installs brokerd and brokerctl from a folder into a prefix, with their man pages and completions:
# install.sh PROGRAMS PREFIX [NATIVE]
# The programs write both themselves. NATIVE has the same programs for this machine, if PROGRAMS has
# those of another architecture.
set -euo pipefail
umask 022
programs=$1 prefix=$2 native=${3:-$1} share=$2/share

install -d "$prefix/bin" "$share/man/man1" "$share/bash-completion/completions" \
  "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
for name in brokerd brokerctl; do
  install -m 755 "$programs/$name" "$prefix/bin/$name"
  "$native/$name" man "$share/man/man1"
  "$native/$name" completion bash >"$share/bash-completion/completions/$name"
  "$native/$name" completion zsh >"$share/zsh/site-functions/_$name"
  "$native/$name" completion fish >"$share/fish/vendor_completions.d/$name.fish"
done
