package crashtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"brokerd/internal/testkit"
)

// TestSeeded_DefectsApplyToTheSource keeps the patches of make mutants up to date. The target checks
// that the tests catch them.
func TestSeeded_DefectsApplyToTheSource(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing: install git")
	}
	patches, err := filepath.Glob("seeded/*.patch")
	if err != nil || len(patches) < 20 {
		t.Fatalf("%d patches (%v), and at least 20 defects are seeded", len(patches), err)
	}
	changes := regexp.MustCompile(`(?m)^--- a/(.*)$`)
	tests := regexp.MustCompile(`(?m)^Tests: (\./.*)$`)
	for _, patch := range patches {
		t.Run(filepath.Base(patch), func(t *testing.T) {
			text, err := os.ReadFile(patch)
			testkit.NoError(t, err)
			for _, file := range changes.FindAllStringSubmatch(string(text), -1) {
				// The test cache then knows that the result depends on the file.
				if _, err := os.ReadFile(filepath.Join("../..", file[1])); err != nil {
					t.Error(err)
				}
			}
			named := tests.FindStringSubmatch(string(text))
			if named == nil {
				t.Fatal(`no line "Tests: PACKAGE..." names the tests`)
			}
			for _, folder := range strings.Fields(named[1]) {
				if _, err := os.Stat(filepath.Join("../..", folder)); err != nil {
					t.Error(err)
				}
			}
			apply := exec.CommandContext(t.Context(), "git", "apply", "--check", filepath.Join("internal/crashtest", patch))
			apply.Dir = "../.."
			if out, err := apply.CombinedOutput(); err != nil {
				t.Errorf("%v: update the patch to the source\n%s", err, out)
			}
		})
	}
}
