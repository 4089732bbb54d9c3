package manual_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/internal/manual"
)

const page = `.TH "TOOL\-LOCK\-RUN" 1 "" "tool 1.2.3" "brokerd"
.nh
.ad l
.SH NAME
tool\-lock\-run \- Run a command
.SH SYNOPSIS
.nf
tool lock run PATH... [flags]
.fi
.SH DESCRIPTION
It doesn\(aqt wait:
.PP
.nf
  a \e b
 .hidden
.fi
.PP
\&.profile ends it.
.SH OPTIONS
.nf
      \-\-wait duration   how long
.fi
.SH EXAMPLES
.nf
  tool lock run \(aqsrc/*.go\(aq
.fi
.SH SEE ALSO
.BR tool\-lock (1)
`

func TestPages_AreWrittenForEachCommandThatHelpShows(t *testing.T) {
	nothing := func(*cobra.Command, []string) {}
	run := &cobra.Command{
		Use: "run PATH...", Short: "Run a command", Example: "  tool lock run 'src/*.go'", Run: nothing,
		Long: "It doesn't wait:\n  a \\ b\n .hidden\n.profile ends it.",
	}
	run.Flags().Duration("wait", 0, "how long")
	lock := &cobra.Command{Use: "lock COMMAND", Short: "Locks"}
	lock.AddCommand(run, &cobra.Command{Use: "secret", Hidden: true, Run: nothing})
	root := &cobra.Command{Use: "tool", Short: "A tool", Version: "1.2.3"}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(lock, manual.NewCommand((*pflag.FlagSet).FlagUsagesWrapped))
	dir := t.TempDir()
	root.SetArgs([]string{"man", dir})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	var names []string
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	if diff := cmp.Diff([]string{"tool-lock-run.1", "tool-lock.1", "tool.1"}, names); diff != "" {
		t.Errorf("the pages (-want +got):\n%s", diff)
	}
	text, err := os.ReadFile(filepath.Join(dir, "tool-lock-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page, string(text)); diff != "" {
		t.Errorf("the page (-want +got):\n%s", diff)
	}
}

func TestPages_AFolderThatIsMissingIsAnError(t *testing.T) {
	root := &cobra.Command{Use: "tool", Short: "A tool", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(manual.NewCommand((*pflag.FlagSet).FlagUsagesWrapped))
	root.SetArgs([]string{"man", t.TempDir() + "/missing"})
	if err := root.ExecuteContext(t.Context()); err == nil {
		t.Error("the missing folder was accepted")
	}
}
