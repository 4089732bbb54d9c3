package web_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// A client that npm's generators make from the OpenAPI document works with the broker.
func TestOpenAPI_AGeneratedClientSendsClaimsAndAcknowledges(t *testing.T) {
	t.Parallel()
	dir := nodeProject(t)
	b := apptest.Start(t)
	document := onSocket(t, b, "").must("GET", "/v1/openapi.json", "").text
	apptest.NoError(t, os.WriteFile(filepath.Join(dir, "openapi.json"), []byte(document), 0o600))
	if out := runIn(t, dir, nil, "node", "validate.mjs", "openapi.json"); !strings.HasPrefix(out, "OpenAPI 3.1.0, ") {
		t.Errorf("validate.mjs prints %s", out)
	}
	runIn(t, dir, nil, "node_modules/.bin/openapi-typescript", "openapi.json", "--output", "schema.d.ts")
	runIn(t, dir, nil, "node_modules/.bin/tsc", "--project", ".")
	env := []string{"BROKERD_URL=http://" + b.TCP(), "BROKERD_SECRET=" + b.Credential()}
	out := runIn(t, dir, env, "node", filepath.Join("build", "client.js"))
	id, acknowledged := strings.CutPrefix(strings.TrimSpace(out), "acknowledged ")
	if !acknowledged {
		t.Fatalf("the client prints %s", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	got, err := b.Root().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	if err != nil || got.GetDeliveries()[0].GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED {
		t.Errorf("the message: %v, %v", got, err)
	}
}

// nodeProject returns a copy of testdata/openapi with the packages that scripts/test-deps.sh installs
// there. It skips the test without them.
func nodeProject(t *testing.T) string {
	t.Helper()
	const source = "testdata/openapi"
	out, err := exec.CommandContext(t.Context(), "node", "-p", "process.versions.node").Output()
	major, _, _ := strings.Cut(string(out), ".")
	if n, _ := strconv.Atoi(major); err != nil || n < 20 {
		t.Skip("Node 20 or newer is missing")
	}
	packages, err := filepath.Abs(filepath.Join(source, "node_modules"))
	apptest.NoError(t, err)
	if _, err := os.Stat(filepath.Join(packages, "openapi-typescript")); err != nil {
		t.Skip("node_modules is missing: `npm ci` in internal/web/testdata/openapi installs it")
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "validate.mjs", "client.ts", "tsconfig.json"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		apptest.NoError(t, err)
		apptest.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	apptest.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
	return dir
}

// runIn runs a program in a folder and returns its output.
func runIn(t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*apptest.Patience)
	defer cancel()
	if strings.Contains(program, "/") {
		program = filepath.Join(dir, program)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(processtest.Environment(t), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}
