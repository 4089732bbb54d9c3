package observe

import (
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var adminPrune = command.Spec[*pb.PruneDataRequest, *pb.PruneDataResponse]{
	Page: command.Page{
		Use:   "prune --older-than TIME",
		Short: "Archive and remove finished data now",
		Long: `Archive and remove finished data that is older than a time now, instead of after its
retention: in all sessions, or in the one of --session. Unfinished data stays. Dead
letters stay unless --kind names them.`,
		Example: `  brokerctl admin prune --older-than 24h --dry-run
  brokerctl admin prune --older-than 7d --kind dead-letters --session website`,
	},
	Options: []command.Option{
		{Field: "older_than", Must: true, Zero: true, Usage: "only data that finished longer ago, 1s to 3650d"},
		{Field: "kinds", Name: "kind", Comma: true,
			Kind:  command.Kind{Name: "KIND", Fixed: dataKinds, Read: readDataKinds},
			Usage: "only this kind: " + strings.Join(dataKinds, ", ") + "; repeatable"},
		{Field: "dry_run", Usage: "count the data, and remove nothing"},
	},
	Prepare: func(g *command.Given, q *pb.PruneDataRequest) error {
		q.Session = g.Global.Session
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.PruneDataRequest, a *pb.PruneDataResponse) {
		free := ""
		if n := a.GetFreeBytes(); n > 0 { // a database server does not say
			free = fmt.Sprintf("; %s of the database file are free", output.Size(n))
		}
		prompt.Say(w, "%s %s, %s, %s and %s%s",
			prompt.Either(q.GetDryRun(), "would remove", "removed"),
			prompt.Count(a.GetMessages(), "message"), prompt.Count(a.GetDeadLetters(), "dead letter"),
			prompt.Count(a.GetEvents(), "event"), prompt.Count(a.GetWork(), "piece")+" of work",
			free)
	},
}

// dataKinds are the kinds of data as the option writes them.
var dataKinds = []string{"messages", "dead-letters", "events", "work"}

func readDataKinds(_ *command.Given, to command.Target, names []string) error {
	for _, name := range names {
		kind, err := output.ParseEnum("kind", pb.DataKind(0).Descriptor(), strings.ReplaceAll(name, "-", "_"))
		if err != nil {
			return err
		}
		to.Set(protoreflect.ValueOfEnum(kind))
	}
	return nil
}
