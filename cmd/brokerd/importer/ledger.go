package importer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// namespace is where the session's state has the ledger.
const namespace = "import"

// ErrBusy says that another import has written to the ledger meanwhile.
var ErrBusy = errors.New("another import runs in this session; let it end, and then run this one again")

// A ledger knows the rows that imports of the session have sent. See the package's documentation. It keeps its keys
// in a file, because there may be many.
type ledger struct {
	broker *client.Client
	db     *sql.DB
	next   int64 // number of the next entry
	latest int64 // revision of the entry in progress
}

// An entry is the value of a key of the ledger.
type entry struct {
	Sending []uuid.UUID `json:"sending,omitempty"`
	Sent    []uuid.UUID `json:"sent,omitempty"`
}

// openLedger reads the ledger of the session.
func openLedger(ctx context.Context, broker *client.Client, dir string) (*ledger, error) {
	db, err := openDatabase(filepath.Join(dir, "ledger.db"), "&_journal_mode=OFF")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	l := &ledger{broker: broker, db: db, next: 1}
	if err := l.load(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return l, nil
}

func (l *ledger) load(ctx context.Context) error {
	// attempt is the number of the first entry that is not completed; 0 = the row is sent.
	_, err := l.db.ExecContext(ctx, "CREATE TABLE keys (key BLOB PRIMARY KEY, attempt INTEGER NOT NULL) WITHOUT ROWID")
	if err != nil {
		return err
	}
	for token := ""; ; {
		page, err := l.broker.State().ListState(ctx,
			&pb.ListStateRequest{Namespace: namespace, Values: true, PageToken: token})
		if err != nil {
			return err
		}
		for _, e := range page.GetEntries() {
			var number int64
			var value entry
			_, err := fmt.Sscanf(e.GetKey(), "%d", &number)
			if err == nil {
				err = json.Unmarshal([]byte(e.GetValue().GetJsonValue()), &value)
			}
			if err != nil {
				return fmt.Errorf("the key %s in the namespace %s of the state is no entry of an import: %w",
					e.GetKey(), namespace, err)
			}
			l.next = max(l.next, number+1)
			if err := l.note(ctx, number, value.Sending); err != nil {
				return err
			}
			if err := l.note(ctx, 0, value.Sent); err != nil {
				return err
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// note keeps keys with an attempt; the least one counts.
func (l *ledger) note(ctx context.Context, attempt int64, keys []uuid.UUID) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, k := range keys {
		_, err := tx.ExecContext(ctx, `INSERT INTO keys (key, attempt) VALUES (?, ?)
			ON CONFLICT (key) DO UPDATE SET attempt = min(attempt, excluded.attempt)`, k[:], attempt)
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

// find reports whether a row is sent. If an earlier import has ended while it sent the row, attempt is the number of
// the ledger's entry, else 0.
func (l *ledger) find(ctx context.Context, k key) (sent bool, attempt int64, err error) {
	err = l.db.QueryRowContext(ctx, "SELECT attempt FROM keys WHERE key = ?", k[:]).Scan(&attempt)
	if errors.Is(err, sql.ErrNoRows) {
		return false, 0, nil
	}
	return err == nil && attempt == 0, attempt, err
}

// begin adds an entry for rows that are to be sent, and returns its number.
func (l *ledger) begin(ctx context.Context, keys []uuid.UUID) (int64, error) {
	number := l.next
	err := l.put(ctx, number, 0, entry{Sending: keys})
	if client.Reason(err) == "STATE_CHANGED" {
		return 0, ErrBusy
	}
	l.next++
	return number, err
}

// end completes the entry that begin has added.
func (l *ledger) end(ctx context.Context, number int64, sent []uuid.UUID) error {
	if err := l.put(ctx, number, l.latest, entry{Sent: sent}); err != nil {
		return err
	}
	return l.note(ctx, 0, sent)
}

func (l *ledger) put(ctx context.Context, number, revision int64, e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	out, err := l.broker.State().PutState(ctx, &pb.PutStateRequest{
		RequestId: uuid.NewString(), Namespace: namespace, Key: fmt.Sprintf("%08d", number),
		Value:           &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: string(text)}},
		CompareRevision: proto.Int64(revision),
	})
	l.latest = out.GetEntry().GetRevision()
	return err
}
