package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"brokerd"
	"brokerd/internal/app"
)

// settings are what can be set by flag, environment and file. The names of the flags name all three:
// --log-level, BROKERD_LOG_LEVEL, log_level.
type settings struct {
	File       string // --config
	Data       string
	Store      string
	Replica    string
	Standby    bool   // --require-standby
	Password   string // --store-password-file: its path
	Artifacts  string
	Archive    string
	Listen     []string
	Sync       string
	Checkpoint string
	LogLevel   string
	LogFormat  string
	Pprof      string
	Metrics    string
	TLSCert    string
	TLSKey     string
	ClientCA   string // --tls-client-ca

	Traces      string
	TraceSample float64 // --trace-sample

	StopOnEOF bool // --stop-on-stdin-eof
	Temporary bool
}

func (s *settings) addFlags(f *pflag.FlagSet) {
	s.addFolderFlags(f)
	f.StringSliceVar(&s.Listen, "listen", nil, "HOST:PORT or unix:PATH, besides the socket in the data folder (repeatable); HOST beyond loopback needs TLS")
	f.StringVar(&s.Replica, "replica", "",
		"HOST:PORT at which other replicas on the database of --store reach this one (default: no other may use the database)")
	f.BoolVar(&s.Standby, "require-standby", false,
		"confirm nothing while the database of --store waits for no synchronous standby")
	f.StringVar(&s.TLSCert, "tls-cert", "", "file with the server's certificate (PEM): every HOST:PORT of --listen speaks TLS 1.3")
	f.StringVar(&s.TLSKey, "tls-key", "", "file with the key of --tls-cert (PEM)")
	f.StringVar(&s.ClientCA, "tls-client-ca", "", "file with authorities (PEM) whose client certificates identify agents")
	f.StringVar(&s.Archive, "archive", "", "folder for removed data (default: archive in the data folder; none with --store)")
	f.StringVar(&s.Sync, "sync", "full", "full: what is confirmed survives power loss; normal: it survives a crash")
	f.StringVar(&s.Checkpoint, "checkpoint", "internal",
		"internal: brokerd copies SQLite's log into the database; external: another program does, such as Litestream")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.LogFormat, "log-format", "auto", "console, json, or auto: console on a terminal")
	f.StringVar(&s.Pprof, "pprof", "", "serve Go's profiles on this address, HOST:PORT on loopback")
	f.BoolVar(&s.StopOnEOF, "stop-on-stdin-eof", false,
		"stop when standard input ends, for a program that starts the daemon and may be killed")
	f.BoolVar(&s.Temporary, "temporary", false,
		"remove the data folder at the end; it must be new or empty (default: a new folder in $TMPDIR)")
	f.StringVar(&s.Metrics, "metrics", "", "serve metrics for Prometheus (/metrics) and health checks (/healthz, /readyz) on this address, HOST:PORT on loopback")
	f.StringVar(&s.Traces, "traces", "", "export OpenTelemetry traces with OTLP over gRPC to https://HOST:PORT, or to HOST:PORT on loopback")
	f.Float64Var(&s.TraceSample, "trace-sample", 1, "share of new traces that are exported, 0 to 1; a trace that a caller has begun is exported if the caller records it")
}

// addFolderFlags adds those that say which data folder is meant.
func (s *settings) addFolderFlags(f *pflag.FlagSet) {
	f.StringVar(&s.File, "config", "", "YAML file with settings")
	f.StringVar(&s.Data, "data", "", "data folder (default $XDG_STATE_HOME/brokerd, else ~/.local/state/brokerd)")
	f.StringVar(&s.Store, "store", "",
		"keep the data in this PostgreSQL database, postgres://USER@HOST/DATABASE (default: SQLite in the data folder)")
	s.addContentFlags(f)
}

func (s *settings) addContentFlags(f *pflag.FlagSet) {
	f.StringVar(&s.Password, "store-password-file", "",
		"file with the password of the PostgreSQL user (default: from PGPASSWORD or ~/.pgpass)")
	f.StringVar(&s.Artifacts, "artifacts", "",
		"folder for the contents of artifacts (default: artifacts in the data folder; with --store, in the database)")
}

// complete fills in, for every flag that was not given, the environment's value, else the file's, else
// the default.
func (s *settings) complete(flags *pflag.FlagSet) error {
	given := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	if hasPassword(s.Store) {
		return errPassword("store")
	}
	for _, name := range settingNames() {
		value := os.Getenv(variable(name))
		if value == "" || given[name] || flags.Lookup(name) == nil {
			continue
		}
		given[name] = true
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("%s: %w", variable(name), err)
		}
	}
	if s.File != "" {
		if err := s.read(flags, given); err != nil {
			return fmt.Errorf("configuration file %s: %w", s.File, err)
		}
	}
	if s.Data != "" || s.Temporary {
		return nil
	}
	var err error
	s.Data, err = defaultData()
	return err
}

func errPassword(flag string) error {
	return fmt.Errorf("%s: every user of this machine sees the password of a flag in the list of processes: "+
		"leave it out, and name a file with --store-password-file, or use PGPASSWORD or ~/.pgpass", flag)
}

// hasPassword reports whether the URL of a database has a password.
func hasPassword(store string) bool {
	u, err := url.Parse(store)
	if err != nil {
		return false
	}
	_, inUser := u.User.Password()
	return inUser || u.Query().Has("password") || u.Query().Has("sslpassword")
}

// firstOf returns the first of the flags that the command line gives; "" if it gives none.
func firstOf(flags *pflag.FlagSet, names ...string) string {
	for _, name := range names {
		if flags.Changed(name) {
			return name
		}
	}
	return ""
}

// checkTLS refuses a flag of TLS that would have no effect; "" is none. In the environment such a setting may be meant for
// clients, and a file may serve several starts.
func (s *settings) checkTLS(flag string) error {
	overTCP := slices.ContainsFunc(s.Listen, func(address string) bool { return !strings.HasPrefix(address, "unix:") })
	if flag == "" || overTCP {
		return nil
	}
	return fmt.Errorf("--%s has no effect without a TCP address: give --listen HOST:PORT, or leave it out", flag)
}

// logLevel returns the log level that the environment and the configuration file give at this
// moment.
func (s *settings) logLevel() (string, error) {
	var now settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	now.addFlags(flags)
	if err := flags.Set("config", s.File); err != nil {
		return "", err
	}
	err := now.complete(flags)
	return now.LogLevel, err
}

// read takes from the file what has not been given otherwise. Keys that nobody knows are named.
func (s *settings) read(flags *pflag.FlagSet, given map[string]bool) error {
	text, err := os.ReadFile(s.File)
	if err != nil {
		return err
	}
	values := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&values); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for key, node := range values {
		name := strings.ReplaceAll(key, "_", "-")
		if !slices.Contains(knownKeys(), key) {
			return fmt.Errorf("line %d: unknown key %q; known are %s", node.Line, key, strings.Join(knownKeys(), ", "))
		}
		if given[name] || flags.Lookup(name) == nil {
			continue // decided already, or of another command
		}
		if err := set(flags, name, &node); err != nil {
			return fmt.Errorf("line %d: %s: %w", node.Line, key, err)
		}
	}
	return nil
}

// set gives a flag the value of a key: a list for flags that can be repeated, else one value.
func set(flags *pflag.FlagSet, flag string, node *yaml.Node) error {
	if list, ok := flags.Lookup(flag).Value.(pflag.SliceValue); ok && node.Kind == yaml.SequenceNode {
		var values []string
		if err := node.Decode(&values); err != nil {
			return err
		}
		return list.Replace(values)
	}
	var value string
	if err := node.Decode(&value); err != nil {
		return errors.New("must be one value")
	}
	return flags.Set(flag, value)
}

// settingNames are the flags of all commands together, which the environment and the file share.
func settingNames() []string {
	var all settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.addFlags(flags)
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// knownKeys are the keys of a configuration file.
func knownKeys() []string {
	var keys []string
	for _, name := range settingNames() {
		if name != "config" {
			keys = append(keys, strings.ReplaceAll(name, "-", "_"))
		}
	}
	return keys
}

func (s *settings) config() app.Config {
	return app.Config{
		Dir: s.Data, Store: s.Store, Replica: s.Replica, RequireStandby: s.Standby,
		PasswordFile: s.Password, Artifacts: s.Artifacts, Archive: s.Archive,
		Listen: s.Listen, TLS: app.TLSFiles{Cert: s.TLSCert, Key: s.TLSKey, ClientCA: s.ClientCA}, Sync: s.Sync,
		Checkpoint: s.Checkpoint, Pprof: s.Pprof, Metrics: s.Metrics, Version: brokerd.ThisBuild().String(),
		Traces: s.Traces, TraceSample: s.TraceSample,
	}
}

func variable(flag string) string {
	return "BROKERD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// defaultData is where state belongs that is no cache and no configuration.
func defaultData() (string, error) {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "brokerd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no data folder given, and none by default: %w", err)
	}
	return filepath.Join(home, ".local", "state", "brokerd"), nil
}
