package main

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

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// trustOptions are the options of trust.
type trustOptions struct {
	yes, list, revoke bool
}

func newTrustCommand(c *cli) *cobra.Command {
	o := &trustOptions{}
	cmd := &cobra.Command{
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
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := c.env.trustStore()
			switch {
			case err != nil:
				return err
			case o.list:
				return o.show(c, cmd, store)
			}
			path, err := c.trustedFile(args)
			if err != nil {
				return err
			}
			if o.revoke {
				return o.distrust(c, cmd, store, path)
			}
			return o.trust(c, cmd, store, path)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.BoolVar(&o.list, "list", false, "list the files that you trust")
	f.BoolVar(&o.revoke, "revoke", false, "trust the file no longer")
	cmd.MarkFlagsMutuallyExclusive("yes", "list", "revoke")
	return cmd
}

// trustedFile returns the file that the command is about.
func (c *cli) trustedFile(args []string) (string, error) {
	dir, err := c.env.dir()
	if err != nil {
		return "", err
	}
	if len(args) == 0 {
		path, err := c.findConfig()
		if path == "" && err == nil {
			err = failf(exitNotFound, "there is no %s in %s or above it", configFile, dir)
		}
		return path, err
	}
	path := args[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, configFile)
	}
	if filepath.Base(path) != configFile {
		return "", usagef("%s is no %s", args[0], configFile)
	}
	return path, nil
}

// trustDone is the JSON output of trust.
type trustDone struct {
	File           string `json:"file"`
	Trusted        bool   `json:"trusted"`
	Addr           string `json:"addr"`
	TLSCA          string `json:"tls_ca"`
	TLSCert        string `json:"tls_cert"`
	TLSKey         string `json:"tls_key"`
	CredentialFile string `json:"credential_file"`
}

func (o *trustOptions) trust(c *cli, cmd *cobra.Command, store trustStore, path string) error {
	file, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) {
		return failf(exitNotFound, "there is no %s", path)
	}
	if err != nil {
		return usagef("%s: %v", path, err)
	}
	done := trustDone{path, true, file.values["addr"], file.values["tls_ca"], file.values["tls_cert"],
		file.values["tls_key"], file.values["credential_file"]}
	if !file.connects() {
		return c.showValue(cmd, done, path+" has none of "+strings.Join(connectionKeys, ", ")+": it needs no trust")
	}
	known, err := store.trusts(path, file)
	if err != nil {
		return err
	}
	if known {
		return c.showValue(cmd, done, path+" is trusted already")
	}
	writeConnection(cmd.ErrOrStderr(), path, file)
	if err := o.ask(c, cmd); err != nil {
		return err
	}
	if err := store.add(path, file); err != nil {
		return failf(exitError, "%v", err)
	}
	return c.showValue(cmd, done, path+" is trusted now")
}

// writeConnection shows where a file sends calls, and with which credential.
func writeConnection(w io.Writer, path string, file config) {
	fmt.Fprintf(w, "%s\n", prompt.OneLine(path))
	for _, key := range connectionKeys {
		value := file.values[key]
		if value == "" {
			continue
		}
		note := ""
		if key != "addr" {
			note = locationNote(file.locate(path, key))
		}
		fmt.Fprintf(w, "  %-15s  %s%s\n", key, prompt.OneLine(value), note)
	}
}

// locationNote says that a file is outside of the folder, and where a symbolic link leads.
func locationNote(p location) string {
	switch {
	case p.inside && p.named:
		return ""
	case !p.linked:
		return "  (outside of the folder)"
	}
	return fmt.Sprintf("  (a symbolic link to %s%s)", prompt.OneLine(p.target), prompt.Either(p.inside, "", ", outside of the folder"))
}

// ask returns nil if the user agrees.
func (o *trustOptions) ask(c *cli, cmd *cobra.Command) error {
	if o.yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin()) {
		return usagef("trust asks on a terminal, and standard input is none: a person runs `brokerctl trust` there")
	}
	fmt.Fprint(cmd.ErrOrStderr(), "Send calls there, with this credential? [y/N] ")
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // the end of the input is no agreement
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return failf(exitError, "the file is not trusted")
}

func (o *trustOptions) distrust(c *cli, cmd *cobra.Command, store trustStore, path string) error {
	was, err := store.remove(path)
	if err != nil {
		return failf(exitError, "%v", err)
	}
	if !was {
		return failf(exitNotFound, "%s was not trusted", path)
	}
	return c.showValue(cmd, trustDone{File: path}, path+" is trusted no longer")
}

// trustRow is the JSON output of trust --list.
type trustRow struct {
	File  string `json:"file"`
	State string `json:"state"` // trusted, changed since, missing
}

// show lists the entries.
func (o *trustOptions) show(c *cli, cmd *cobra.Command, store trustStore) error {
	all, err := store.list()
	if err != nil {
		return err
	}
	format, err := c.format()
	if err != nil {
		return err
	}
	t := c.newTable(cmd.OutOrStdout(), table.Column{Name: "FILE"}, table.Column{Name: "STATE"})
	for _, entry := range all {
		state := "trusted"
		if file, err := readConfig(entry.File); err != nil {
			state = "missing"
		} else if file.connectionSum() != entry.Sum {
			state = "changed since"
		}
		if format == formatJSON {
			if err := c.showValue(cmd, trustRow{entry.File, state}, ""); err != nil {
				return err
			}
			continue
		}
		t.row(entry.File, state)
	}
	if format == formatJSON {
		return nil
	}
	if len(all) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "no files are trusted")
		return nil
	}
	return t.flush()
}
