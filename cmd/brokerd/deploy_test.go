package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"brokerd/internal/apptest"
)

const deploy = "../../deploy"

func TestExampleConfig_HasEveryKeyWithItsDefault(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	file := filepath.Join(deploy, "brokerd.yaml")
	got, err := settle(t, "--config", file)
	apptest.NoError(t, err)
	want, err := settle(t)
	apptest.NoError(t, err)
	got.File = ""
	if len(got.Listen) == 0 {
		got.Listen = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a copy of deploy/brokerd.yaml changes the defaults (-default +file):\n%s", diff)
	}

	text, err := os.ReadFile(file)
	apptest.NoError(t, err)
	var values map[string]any
	apptest.NoError(t, yaml.Unmarshal(text, &values))
	for _, key := range knownKeys() {
		if _, ok := values[key]; !ok {
			t.Errorf("deploy/brokerd.yaml does not have the key %q", key)
		}
	}
}

func TestExampleConfig_IsWhatTheManualLists(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../../docs/configure.md")
	apptest.NoError(t, err)
	for _, key := range knownKeys() {
		name := strings.ReplaceAll(key, "_", "-")
		for _, want := range []string{"`--" + name, "`" + variable(name) + "`", "`" + key + "`"} {
			if !strings.Contains(string(manual), want) {
				t.Errorf("docs/configure.md does not name %s", want)
			}
		}
	}
}

// The command of the unit is one that brokerd understands, and systemd knows every line of it.
func TestUnit_IsAccepted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(deploy, "brokerd@.service"))
	apptest.NoError(t, err)
	unit := string(text)
	start := regexp.MustCompile(`(?m)^ExecStart=(\S+) (.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	args := strings.Fields(start[2])
	config := slices.Index(args, "--config") + 1
	if config == 0 || config == len(args) {
		t.Fatalf("the unit gives no --config: %q", args)
	}
	args[config] = filepath.Join(deploy, "brokerd.yaml") // where it was installed from
	if got, err := settle(t, args...); err != nil || got.Data != "%S/brokerd/%i" {
		t.Errorf("the unit's command line: data %q, %v", got.Data, err)
	}

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing; the unit's other lines are not looked at")
	}
	// systemd looks for the program, which need not be installed here.
	file := filepath.Join(t.TempDir(), "brokerd@user.service")
	apptest.NoError(t, os.WriteFile(file, []byte(strings.Replace(unit, start[1], "/bin/true", 1)), 0o600))
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", file).CombinedOutput()
	if err != nil || len(out) > 0 { // what it does not know it only warns of
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// The exposure is 1.3 of 10; the threshold is in tenths.
	security := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=14", "--no-pager", file)
	if out, err := security.CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// The parts of a Compose file that start brokerd.
type composeFile struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
		ReadOnly    bool     `yaml:"read_only"`
		CapDrop     []string `yaml:"cap_drop"`
		Secrets     []string
		Volumes     []string
	}
	Secrets map[string]any
	Volumes map[string]any
}

func TestCompose_StartsBrokerdWithSettingsThatItKnows(t *testing.T) {
	t.Parallel()
	for name, services := range map[string][]string{
		"compose.yaml":          {"brokerd"},
		"compose-replicas.yaml": {"broker-a", "broker-b"},
	} {
		var file composeFile
		decode(t, name, &file)
		for _, service := range services {
			checkService(t, file, service)
		}
	}
}

// checkService checks a service of a Compose file that runs brokerd.
func checkService(t *testing.T, file composeFile, name string) {
	t.Helper()
	service := file.Services[name]
	got, err := settle(t, service.Command...)
	if err != nil || got.TLSCert == "" || got.TLSKey == "" {
		t.Errorf("%s: %q: certificate %q, key %q, %v", name, service.Command, got.TLSCert, got.TLSKey, err)
	}
	if !service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"}) {
		t.Errorf("%s: read_only %t, cap_drop %q", name, service.ReadOnly, service.CapDrop)
	}
	for _, path := range []string{got.TLSCert, got.TLSKey, got.Password} {
		secret := filepath.Base(path)
		if path == "" {
			continue
		}
		_, known := file.Secrets[secret]
		if !known || !slices.Contains(service.Secrets, secret) || filepath.Dir(path) != "/run/secrets" {
			t.Errorf("%s: %s is no secret of the service", name, path)
		}
	}
	if got.Store != "" && (!got.Standby || service.Environment["BROKERD_REPLICA"] != name+":7423") {
		t.Errorf("%s: standby required %t, environment %v", name, got.Standby, service.Environment)
	}
}

// The parts of a Kubernetes manifest that start brokerd.
type manifest struct {
	Kind string
	Spec struct {
		Selector any
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				SecurityContext map[string]any `yaml:"securityContext"`
				Containers      []struct {
					Args            []string
					SecurityContext map[string]any `yaml:"securityContext"`
					VolumeMounts    []struct {
						Name, MountPath string
					} `yaml:"volumeMounts"`
				}
			}
		}
	}
}

func TestKubernetes_StartsBrokerdWithSettingsThatItKnows(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"kubernetes.yaml":          {"Service", "StatefulSet", "NetworkPolicy"},
		"kubernetes-replicas.yaml": {"Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy"},
	} {
		text, err := os.ReadFile(filepath.Join(deploy, name))
		apptest.NoError(t, err)
		kinds := []string{}
		for documents := yaml.NewDecoder(strings.NewReader(string(text))); ; {
			var m manifest
			if err := documents.Decode(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, m.Kind)
			if m.Kind == "StatefulSet" || m.Kind == "Deployment" {
				checkWorkload(t, m)
			}
		}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// checkWorkload checks a workload that runs brokerd.
func checkWorkload(t *testing.T, m manifest) {
	t.Helper()
	pod := m.Spec.Template.Spec
	c := pod.Containers[0]
	got, err := settle(t, c.Args...)
	if err != nil || filepath.Dir(got.TLSCert) != "/etc/brokerd/tls" || filepath.Dir(got.TLSKey) != "/etc/brokerd/tls" {
		t.Errorf("%q: certificate %q, key %q, %v", c.Args, got.TLSCert, got.TLSKey, err)
	}
	if pod.SecurityContext["runAsNonRoot"] != true || c.SecurityContext["readOnlyRootFilesystem"] != true {
		t.Errorf("the container may run as root or write to its root: %v %v", pod.SecurityContext, c.SecurityContext)
	}
	const label = "app.kubernetes.io/name"
	want := map[string]any{"matchLabels": map[string]any{label: m.Spec.Template.Metadata.Labels[label]}}
	if diff := cmp.Diff(want, m.Spec.Selector); diff != "" {
		t.Errorf("the selector does not match the pods:\n%s", diff)
	}
}

func decode(t *testing.T, name string, to any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, name))
	apptest.NoError(t, err)
	apptest.NoError(t, yaml.Unmarshal(text, to))
}
