package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

// The commands are those of the page, in its order. Only the port differs.
func TestSecurity_TourOfTLSWorks(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(read(t, "security.md"), "### A tour")
	if !found {
		t.Fatal("security.md has no tour")
	}
	program, folder, env := processtest.Build(t), t.TempDir(), processtest.Environment(t)
	reader := openTerminal(t, folder, env)
	reader.run("export PATH=" + filepath.Dir(program) + `:"$PATH"`)
	where := ""
	for _, block := range fence.FindAllStringSubmatch(section, -1) {
		for command := range strings.Lines(block[2]) {
			command = strings.TrimSpace(command)
			if args, ok := strings.CutPrefix(command, "brokerd "); ok {
				args = strings.ReplaceAll(args, "localhost:7421", "localhost:0") + " --log-format console"
				line := startDaemon(t, folder, env, program, strings.Fields(args)...)
				port := regexp.MustCompile(`tls://[^ ]*:(\d+)`).FindStringSubmatch(line)
				if port == nil {
					t.Fatalf("brokerd listens nowhere with TLS: %s", line)
				}
				where = "localhost:" + port[1]
				continue
			}
			command = strings.ReplaceAll(command, "localhost:7421", where)
			if m := exitCode.FindStringSubmatch(command); m != nil {
				command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
			}
			reader.run(command)
		}
	}
	if where == "" {
		t.Error("the tour starts no brokerd")
	}
}
