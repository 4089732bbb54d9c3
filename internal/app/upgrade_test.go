package app_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/jsonform"
	"brokerd/internal/testkit"
)

// An older is what scripts/upgrade-data.sh has packed: the data of an older version.
type older struct {
	dir   string // data/ is the data folder, backup a backup of it
	at    time.Time
	calls []oldCall
}

// An oldCall is a call and the answer of the older version.
type oldCall struct {
	Agent, Method   string
	Request, Answer json.RawMessage
}

// TestUpgrade_OpensADataFolderOfAnOlderVersion starts on data that an older version has left when it was killed, and on
// a backup of them, and compares its answers with those of the older version. A field that is new may be in addition.
func TestUpgrade_OpensADataFolderOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	archives, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, archive := range archives {
		version := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
		t.Run(version+"/data", func(t *testing.T) {
			t.Parallel()
			old := unpack(t, archive)
			old.compare(t, filepath.Join(old.dir, "data"))
		})
		t.Run(version+"/backup", func(t *testing.T) {
			t.Parallel()
			old := unpack(t, archive)
			backup, err := os.Open(filepath.Join(old.dir, "backup"))
			apptest.NoError(t, err)
			defer func() { _ = backup.Close() }()
			config := app.Config{Dir: filepath.Join(old.dir, "restored"), Clock: clockwork.NewFakeClockAt(old.at)}
			if _, err := app.Restore(context.Background(), config, backup); err != nil {
				t.Fatalf("restore: %v", err)
			}
			old.compare(t, config.Dir)
		})
	}
}

// unpack unpacks an archive into a folder that ends with the test.
func unpack(t *testing.T, archive string) older {
	t.Helper()
	packed, err := os.Open(archive)
	apptest.NoError(t, err)
	defer func() { _ = packed.Close() }()
	unzipped, err := gzip.NewReader(packed)
	apptest.NoError(t, err)
	old := older{dir: folder(t)}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		apptest.NoError(t, err)
		old.unpackFile(t, header, files)
	}
	at, err := os.ReadFile(filepath.Join(old.dir, "time"))
	if err == nil {
		old.at, err = time.Parse(time.RFC3339, strings.TrimSpace(string(at)))
	}
	apptest.NoError(t, err)
	answers, err := os.ReadFile(filepath.Join(old.dir, "answers.jsonl"))
	apptest.NoError(t, err)
	for lines := bufio.NewReader(bytes.NewReader(answers)); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return old
		}
		var call oldCall
		apptest.NoError(t, json.Unmarshal(line, &call))
		old.calls = append(old.calls, call)
	}
}

// unpackFile writes one file or folder of the archive.
func (o older) unpackFile(t *testing.T, header *tar.Header, content io.Reader) {
	t.Helper()
	path := filepath.Join(o.dir, filepath.FromSlash(header.Name))
	if header.Typeflag == tar.TypeDir {
		apptest.NoError(t, os.MkdirAll(path, 0o700))
		return
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	apptest.NoError(t, err)
	_, err = io.Copy(file, content)
	apptest.NoError(t, errors.Join(err, file.Close()))
}

// compare starts a broker on a data folder and repeats the calls.
func (o older) compare(t *testing.T, dir string, changes ...func(*app.Config)) {
	t.Helper()
	b := apptest.Start(t, apptest.With(func(c *app.Config) {
		c.Dir, c.Store, c.Clock = dir, "", clockwork.NewFakeClockAt(o.at)
		for _, change := range changes {
			change(c)
		}
	}))
	for _, call := range o.calls {
		method := methodOf(t, call.Method)
		request, answer := messageOf(t, method.Input()), messageOf(t, method.Output())
		apptest.NoError(t, jsonform.Decode(call.request(t), request))
		conn := b.Operator()
		if call.Agent != "" {
			conn = b.Conn(call.Agent)
		}
		if err := conn.Invoke(patient(t), fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name()), request, answer); err != nil {
			t.Errorf("%s: %v", call.Method, err)
			continue
		}
		var text bytes.Buffer
		apptest.NoError(t, jsonform.Append(&text, answer))
		before := decoded(t, call.Answer).(map[string]any)
		delete(before, "revision") // of the broker as a whole
		for _, difference := range differences(call.Method, before, decoded(t, text.Bytes())) {
			t.Error(difference)
		}
	}
}

// request returns the request of a call in the names of today.
func (c oldCall) request(t *testing.T) []byte {
	t.Helper()
	fields := decoded(t, c.Request).(map[string]any)
	switch c.Method {
	case "TaskService/GetTask", "DecisionService/GetDecision", "VoteService/GetVote":
		for _, name := range []string{"task_id", "decision_id", "vote_id"} {
			if id, ok := fields[name]; ok {
				fields["id"] = id
				delete(fields, name)
			}
		}
	case "TaskService/ListTasks", "BlockerService/ListBlockers", "HandoffService/ListHandoffs":
		fields["oldest_first"] = true
	}
	text, err := json.Marshal(fields)
	apptest.NoError(t, err)
	return text
}

func methodOf(t *testing.T, name string) protoreflect.MethodDescriptor {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("brokerd.v1." + strings.ReplaceAll(name, "/", ".")))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return found.(protoreflect.MethodDescriptor)
}

func messageOf(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	apptest.NoError(t, err)
	return kind.New().Interface()
}

func decoded(t *testing.T, text []byte) any {
	t.Helper()
	var value any
	apptest.NoError(t, json.Unmarshal(text, &value))
	return value
}

// renewed are the fields that change with time or with a restart of the broker.
var renewed = []string{"active", "held_until", "last_seen", "lease_until", "messages", "time_blocked"}

// renamed are the fields of decisions that have another name today.
var renamed = map[string]string{"opened_by": "opener"}

// catalogCalls begins the places in the lists of message types: a new version may add types and aliases.
const catalogCalls = "CatalogService/"

// lost returns the items of a list of the older version that the new list lacks.
func lost(place string, old, now []any) []string {
	var all []string
	for _, item := range old {
		if !slices.ContainsFunc(now, func(other any) bool { return len(differences(place, item, other)) == 0 }) {
			all = append(all, fmt.Sprintf("%s lacks %v", place, item))
		}
	}
	return all
}

// differences returns what a value of the older version has and the new one has not.
func differences(place string, old, now any) []string {
	switch old := old.(type) {
	case map[string]any:
		other, _ := now.(map[string]any)
		var all []string
		for name, value := range old {
			if !slices.Contains(renewed, name) {
				today := name
				if strings.HasPrefix(place, "DecisionService/") {
					today = cmp.Or(renamed[name], name)
				}
				all = append(all, differences(place+"."+name, value, other[today])...)
			}
		}
		return all
	case []any:
		other, _ := now.([]any)
		if strings.HasPrefix(place, catalogCalls) {
			return lost(place, old, other)
		}
		if len(other) != len(old) {
			return []string{fmt.Sprintf("%s has %d items, was %d", place, len(other), len(old))}
		}
		var all []string
		for i := range old {
			all = append(all, differences(fmt.Sprintf("%s[%d]", place, i), old[i], other[i])...)
		}
		return all
	}
	if old != now {
		return []string{fmt.Sprintf("%s is %v, was %v", place, now, old)}
	}
	return nil
}
