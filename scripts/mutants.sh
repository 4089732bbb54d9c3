#!/usr/bin/env bash
# Applies each seeded defect of internal/crashtest/seeded to a copy of the source, and runs the tests of
# the packages that the patch names, up to the first failure. Prints which test caught the defect, and
# fails if a defect is not caught. The test that every patch applies to the source does not count.
#
# Usage: scripts/mutants.sh [NAME...]   (NAME is a patch without .patch; default: all)
set -euo pipefail
cd "$(dirname "$0")/.."
patches=$PWD/internal/crashtest/seeded

names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(cd "$patches" && ls -- *.patch | sed 's/\.patch$//')

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"

caught=0
for name in "${names[@]}"; do
	patch=$patches/$name.patch
	read -ra tests < <(sed -n 's/^Tests: //p' "$patch")
	git apply "$patch"
	began=$SECONDS
	if go test -count=1 -failfast -p 1 -skip '^TestSeeded_' "${tests[@]}" >test.log 2>&1; then
		outcome="NOT CAUGHT by the tests of ${tests[*]}"
	elif grep -qE '\[(build|setup) failed\]' test.log; then
		outcome="DOES NOT BUILD: $(grep -m 1 '\.go:' test.log)"
	else
		by=$(sed -nE 's/^ *--- FAIL: ([^ ]+).*/\1/p; s/^\t+(Test[A-Za-z0-9_]+).* \([0-9a-z.]+\)$/\1/p' test.log | head -n 1)
		outcome="caught by ${by:-the end of the test program} of $(sed -nE 's/^FAIL\t([^ \t]+).*/\1/p' test.log | head -n 1)"
		caught=$((caught + 1))
	fi
	printf '%-34s %4d s  %s\n' "$name" $((SECONDS - began)) "$outcome"
	git apply --reverse "$patch"
done
echo "$caught of ${#names[@]} caught"
[ "$caught" -eq "${#names[@]}" ]
