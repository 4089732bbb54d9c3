package supervise

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestReports_AreReadFromLines(t *testing.T) {
	for line, want := range map[string]*pb.HeartbeatRequest{
		`{"type":"status","status":"Idle"}`:                      {Status: pb.AgentStatus_AGENT_STATUS_IDLE},
		`{"type":"status","progress":0,"counters":{"errors":2}}`: {Progress: proto.Float64(0), Counters: &pb.Counters{Errors: proto.Int64(2)}},
		`{"type": "status", "message": "Starting API design", "progress": 0.1}`: {
			Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: proto.String("Starting API design"), Progress: proto.Float64(0.1),
		},
		`{"type": "dependency", "waiting_for": "agent_researcher_001", "reason": "Need database recommendations"}`: {
			Status: pb.AgentStatus_AGENT_STATUS_WAITING, Activity: proto.String("waiting for agent_researcher_001: Need database recommendations"),
		},
		`{"type": "complete", "result": "success", "outputs": ["api-spec.yaml", "system-design.md"]}`: {
			Status: pb.AgentStatus_AGENT_STATUS_COMPLETED, Activity: proto.String("api-spec.yaml, system-design.md"), Progress: proto.Float64(1),
		},
		`{"type":"complete","result":"failure"}`:         {Status: pb.AgentStatus_AGENT_STATUS_FAILED, Activity: proto.String("")},
		`{"type":"dependency","on":"x"}`:                 {Status: pb.AgentStatus_AGENT_STATUS_WAITING, Activity: proto.String("waiting for x")},
		`{"type":"dependency","on":"x","resolved":true}`: {Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: proto.String("has x")},
		`{"type":"complete","summary":"ok"}`:             {Status: pb.AgentStatus_AGENT_STATUS_COMPLETED, Activity: proto.String("ok"), Progress: proto.Float64(1)},
	} {
		got, err := parseReport([]byte(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if diff := cmp.Diff(want, got[0].heartbeat, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", line, diff)
		}
	}
	for line, text := range map[string]string{
		`{"type":"status","status":"lazy"}`:        `status: "lazy" is none of`,
		`{"type":"status","progress":1.5}`:         "progress 1.5: 0 to 1",
		`{"type":"status","activity":7}`:           "status: json:",
		`{"type":"dependency"}`:                    "waiting_for and on are missing",
		`{"type":"complete","to":"role:"}`:         "names no role",
		`{"type":"artifact","name":"x"}`:           "path is missing",
		`{"kind":"status"}`:                        "no report",
		`[1]`:                                      "no report",
		`{"type":"status"} and more of the prose.`: "no report",
	} {
		if _, err := parseReport([]byte(line)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", line, err, text)
		}
	}
}

func TestReports_LinesComeWholeOrInPieces(t *testing.T) {
	const text = "a\n{r}\nb{r}\n {r}\n\n{x}\n{r}"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		taken := 0
		l := &lineReader{out: &out, report: func(line []byte) bool {
			if strings.TrimSpace(string(line)) == "{r}" {
				taken++
				return true
			}
			return false
		}}
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			apptest.NoError(t, apptest.Err(l.Write(rest[:min(size, len(rest))])))
		}
		if err := l.flush(); err != nil || taken != 3 || out.String() != "a\nb{r}\n\n{x}\n" {
			t.Errorf("in pieces of %d: %d reports, %q, %v", size, taken, out.String(), err)
		}
	}
	var out bytes.Buffer
	l := &lineReader{out: &out, report: func([]byte) bool { return true }}
	_, err := l.Write([]byte("50%"))
	if err != nil || out.String() != "50%" {
		t.Errorf("what is no report waits for its end: %q, %v", out.String(), err)
	}
	_, err = l.Write([]byte("\n{" + strings.Repeat("x", longestLine) + "\nend"))
	if err != nil || out.Len() != 3+1+1+longestLine+1+3 {
		t.Errorf("%d bytes came through, %v", out.Len(), err)
	}
}

// The page describes every field, and its examples are understood.
func TestReports_AreAsThePageDescribesThem(t *testing.T) {
	text, err := os.ReadFile("../../../docs/agents-run.md")
	apptest.NoError(t, err)
	_, examples, _ := strings.Cut(string(text), "```json\n")
	examples, _, _ = strings.Cut(examples, "```")
	n := 0
	for line := range strings.Lines(examples) {
		if n++; !(&Reporter{Stderr: t.Output()}).take([]byte(line)) {
			t.Errorf("the page's %s is not understood", line)
		}
	}
	if n != 8 {
		t.Errorf("the page has %d examples", n)
	}
	for i, l := 0, reflect.TypeFor[reportLine](); i < l.NumField(); i++ {
		if name := l.Field(i).Tag.Get("json"); name != "type" && !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("the page does not describe %s", name)
		}
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"type":"complete","summary":"x","result":[1],"to":"role:a"}`))
	f.Add([]byte(`{"type":"status","status":"active","activity":"é","progress":0.5,"counters":{"turns":1}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		reports, err := parseReport(line)
		if err == nil && len(reports) == 0 || err != nil && len(reports) > 0 {
			t.Fatalf("%q: %d reports, %v", line, len(reports), err)
		}
		if errors.Is(err, errNoReport) {
			return
		}
		for _, r := range reports {
			if h := r.heartbeat; h != nil && (len(h.GetActivity()) > 512 || h.GetProgress() < 0 || h.GetProgress() > 1) {
				t.Fatalf("%q: %v", line, h)
			}
		}
	})
}
