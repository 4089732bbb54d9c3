package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// NewTrustCommand returns the command brokerctl trust.
func NewTrustCommand(c *command.Caller) *cobra.Command {
	cmd := trustCommand.Command(c)
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

var trustCommand = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "trust [FILE]",
		Short: "Trust the broker and the credential that a .brokerd.yaml names",
		Long: `Show where a .brokerd.yaml sends the calls of this folder and with which credential, ask
on the terminal, and trust it. Without FILE, it is the file that applies in this folder.

The keys addr, tls_ca, tls_cert, tls_key and credential_file of a .brokerd.yaml count only
if you trust the file: another person may have written it, as in a cloned repository. Commands in its
folder end with exit code 2 before that. A change of these five values, or another
path, needs trust again. The keys agents, session and output need none. What init and
setup write is trusted.

An entry in ~/.config/brokerd/trusted has the path and the SHA-256 of the five values.`,
		Example: `  brokerctl trust
  brokerctl trust --list
  brokerctl trust --revoke ../other/.brokerd.yaml`,
	},
	Args: []command.Arg{{Kind: command.Kind{Files: true}}},
	Options: []command.Option{
		{Name: "yes", Type: "bool", Usage: "do not ask"},
		{Name: "list", Type: "bool", Usage: "list the files that you trust"},
		{Name: "revoke", Type: "bool", Usage: "trust the file no longer"},
	},
	Apart: [][]string{{"yes", "list", "revoke"}},
	Run: func(g *command.Given, _ command.None) error {
		store, err := g.Env.TrustStore()
		switch {
		case err != nil:
			return err
		case g.On("list"):
			return showTrusted(g.Caller, g.Cmd, store)
		}
		path, err := trustedFile(g.Caller, g.Args)
		if err != nil {
			return err
		}
		if g.On("revoke") {
			return distrust(g.Caller, g.Cmd, store, path)
		}
		return trust(g, store, path)
	},
}

// trustedFile returns the file that the command is about.
func trustedFile(c *command.Caller, args []string) (string, error) {
	dir, err := c.Env.WorkingDir()
	if err != nil {
		return "", err
	}
	if len(args) == 0 {
		path, err := c.FindConfig()
		if path == "" && err == nil {
			err = problem.Failf(problem.ExitNotFound, "there is no %s in %s or above it", setting.ConfigFile, dir)
		}
		return path, err
	}
	path := args[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, setting.ConfigFile)
	}
	if filepath.Base(path) != setting.ConfigFile {
		return "", problem.Usagef("%s is no %s", args[0], setting.ConfigFile)
	}
	return path, nil
}

// TrustDone is the JSON output of trust.
type TrustDone struct {
	File           string `json:"file"`
	Trusted        bool   `json:"trusted"`
	Addr           string `json:"addr"`
	TLSCA          string `json:"tls_ca"`
	TLSCert        string `json:"tls_cert"`
	TLSKey         string `json:"tls_key"`
	CredentialFile string `json:"credential_file"`
}

func trust(g *command.Given, store setting.TrustStore, path string) error {
	c, cmd := g.Caller, g.Cmd
	file, err := setting.ReadConfig(path)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.Failf(problem.ExitNotFound, "there is no %s", path)
	}
	if err != nil {
		return problem.Usagef("%s: %v", path, err)
	}
	done := TrustDone{path, true, file.Values["addr"], file.Values["tls_ca"], file.Values["tls_cert"],
		file.Values["tls_key"], file.Values["credential_file"]}
	if !file.Connects() {
		return c.ShowValue(cmd, done, path+" has none of "+strings.Join(setting.ConnectionKeys, ", ")+": it needs no trust")
	}
	known, err := store.Trusts(path, file)
	if err != nil {
		return err
	}
	if known {
		return c.ShowValue(cmd, done, path+" is trusted already")
	}
	writeConnection(cmd.ErrOrStderr(), path, file)
	if err := ask(g); err != nil {
		return err
	}
	if err := store.Add(path, file); err != nil {
		return problem.Failf(problem.ExitError, "%v", err)
	}
	return c.ShowValue(cmd, done, path+" is trusted now")
}

// writeConnection shows where a file sends calls, and with which credential.
func writeConnection(w io.Writer, path string, file setting.Config) {
	fmt.Fprintf(w, "%s\n", prompt.OneLine(path))
	for _, key := range setting.ConnectionKeys {
		value := file.Values[key]
		if value == "" {
			continue
		}
		note := ""
		if key != "addr" {
			note = locationNote(file.Locate(path, key))
		}
		fmt.Fprintf(w, "  %-15s  %s%s\n", key, prompt.OneLine(value), note)
	}
}

// locationNote says that a file is outside of the folder, and where a symbolic link leads.
func locationNote(p setting.Location) string {
	switch {
	case p.Inside && p.Named:
		return ""
	case !p.Linked:
		return "  (outside of the folder)"
	}
	return fmt.Sprintf("  (a symbolic link to %s%s)", prompt.OneLine(p.Target),
		prompt.Either(p.Inside, "", ", outside of the folder"))
}

// ask returns nil if the user agrees.
func ask(g *command.Given) error {
	cmd := g.Cmd
	if g.On("yes") {
		return nil
	}
	if !output.IsTerminal(cmd.InOrStdin()) {
		return problem.Usagef("trust asks on a terminal, and standard input is none: a person runs `brokerctl trust` there")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Send calls there, with this credential? [y/N] ")
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // the end of the input is no agreement
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return problem.Failf(problem.ExitError, "the file is not trusted")
}

func distrust(c *command.Caller, cmd *cobra.Command, store setting.TrustStore, path string) error {
	was, err := store.Remove(path)
	if err != nil {
		return problem.Failf(problem.ExitError, "%v", err)
	}
	if !was {
		return problem.Failf(problem.ExitNotFound, "%s was not trusted", path)
	}
	return c.ShowValue(cmd, TrustDone{File: path}, path+" is trusted no longer")
}

// TrustRow is the JSON output of trust --list.
type TrustRow struct {
	File  string `json:"file"`
	State string `json:"state"` // trusted, changed since, missing
}

// showTrusted lists the entries.
func showTrusted(c *command.Caller, cmd *cobra.Command, store setting.TrustStore) error {
	all, err := store.List()
	if err != nil {
		return err
	}
	format, err := c.Format()
	if err != nil {
		return err
	}
	t := c.NewTable(cmd.OutOrStdout(), table.Column{Name: "FILE"}, table.Column{Name: "STATE"})
	for _, entry := range all {
		state := "trusted"
		if file, err := setting.ReadConfig(entry.File); err != nil {
			state = "missing"
		} else if file.ConnectionSum() != entry.Sum {
			state = "changed since"
		}
		if format == output.FormatJSON {
			if err := c.ShowValue(cmd, TrustRow{entry.File, state}, ""); err != nil {
				return err
			}
			continue
		}
		t.Row(entry.File, state)
	}
	if format == output.FormatJSON {
		return nil
	}
	if len(all) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "no files are trusted")
		return nil
	}
	return t.Flush()
}
