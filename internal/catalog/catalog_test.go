package catalog_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestSend_DoubtsFollowTheSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy  pb.TypePolicy
		verdict pb.PayloadVerdict
	}{
		{pb.TypePolicy_TYPE_POLICY_ALLOW, pb.PayloadVerdict_PAYLOAD_VERDICT_ACCEPTED},
		{pb.TypePolicy_TYPE_POLICY_WARN, pb.PayloadVerdict_PAYLOAD_VERDICT_WARNED},
		{pb.TypePolicy_TYPE_POLICY_REFUSE, pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED},
	} {
		for _, doubt := range []struct {
			kind, payload, says, reason, event string
			settings                           *pb.SessionSettings
		}{
			{
				"TaskComplet", `{}`, "did you mean task_complete", "TYPE_UNKNOWN", "message.type_unknown",
				&pb.SessionSettings{UnknownTypes: c.policy},
			},
			{
				"TaskProgress", `{"task_id": 4711}`, "/task_id: got number, want string",
				"PAYLOAD_INVALID", "message.payload_invalid",
				&pb.SessionSettings{InvalidPayloads: c.policy},
			},
		} {
			t.Run(fmt.Sprintf("%s %s", doubt.reason, c.policy), func(t *testing.T) {
				w := start(t)
				w.Root().Configure(doubt.settings)
				o := w.Root()
				w.Agent("b", "")
				said := apptest.Must(t, o.ValidatePayload, &pb.ValidatePayloadRequest{Type: doubt.kind, Payload: doubt.payload})
				if said.Verdict != c.verdict {
					t.Errorf("verdict %v", said)
				}
				results, err := send(o, &pb.Message{Type: doubt.kind, Payload: doubt.payload})
				events := len(o.Events(doubt.event))
				switch c.policy {
				case pb.TypePolicy_TYPE_POLICY_ALLOW:
					if err != nil || len(results[0].Warnings) > 0 || events > 0 {
						t.Errorf("allowed: %v, %v, %d events", results, err, events)
					}
				case pb.TypePolicy_TYPE_POLICY_WARN:
					if err != nil || len(results[0].Warnings) != 1 || !strings.Contains(results[0].Warnings[0], doubt.says) ||
						events != 1 {
						t.Errorf("warned: %v, %v, %d events", results, err, events)
					}
					if len(said.Messages) != 1 || said.Messages[0] != results[0].Warnings[0] {
						t.Errorf("the check says %q, the send %q", said.Messages, results[0].Warnings)
					}
				default:
					if status.Code(err) != codes.InvalidArgument || testkit.Reason(err) != doubt.reason ||
						!strings.Contains(err.Error(), doubt.says) {
						t.Errorf("refused: %v", err)
					}
					if len(said.Messages) != 1 || !strings.Contains(said.Messages[0], doubt.says) {
						t.Errorf("the check says %q", said.Messages)
					}
				}
			})
		}
	}
}

func TestSend_OneCallWithManyDoubtsIsOneEventOfEachKind(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	w.Agent("b", "")
	var messages []*pb.Message
	for i := range 20 {
		messages = append(messages,
			&pb.Message{Type: fmt.Sprintf("mystery%d", i)}, &pb.Message{Type: "halt", Payload: `{"reason":1}`})
	}
	_, err := send(o, messages...)
	apptest.NoError(t, err)
	for _, kind := range []string{"message.type_unknown", "message.payload_invalid"} {
		found := o.Events(kind)
		if len(found) != 1 || found[0].Severity != pb.Severity_SEVERITY_WARNING || len(found[0].Related) != 16 ||
			!strings.Contains(found[0].Details, `"count":20`) {
			t.Errorf("%s: %v", kind, found)
		}
	}
}

func TestSend_WithoutAPayloadOrWithFreeTextIsNotInDoubt(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	w.Agent("b", "")
	for kind, payload := range map[string]string{
		"": `{"n": 1}`, "message": `[1, 2]`, "text": `"free"`, "task_assignment": "", "question": `{"n": 1}`, "event": "",
		"task_complete": `{"anything": {"else": true}}`,
	} {
		if r := sent(o, kind, payload); len(r.Warnings) > 0 {
			t.Errorf("type %q, payload %s: %q", kind, payload, r.Warnings)
		}
	}
}

func TestRegister_TypesEndWithTheirSession(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	create := func() {
		t.Helper()
		apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "short"})
	}
	create()
	short := w.Actor("short", "")
	apptest.Must(t, short.RegisterMessageType, deployFinished())
	halt := &pb.RegisterMessageTypeRequest{Name: "halt", Title: "Stop and wait.", Schema: `{"required":["reason"]}`}
	apptest.Must(t, short.RegisterMessageType, halt)
	if v, err := short.ValidatePayload(o.Ctx, &pb.ValidatePayloadRequest{Type: "deploy_done"}); err != nil || !v.Known {
		t.Errorf("before: %v, %v", v, err)
	}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "short"})
	stream, err := o.ExportSession(o.Ctx, &pb.ExportSessionRequest{Name: "short"})
	apptest.NoError(t, err)
	exported := ""
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		apptest.NoError(t, err)
		exported += part.String()
	}
	if !strings.Contains(exported, "types.jsonl") || !strings.Contains(exported, "deploy_finished") || !strings.Contains(exported, "Stop and wait.") {
		t.Errorf("the export lacks a type: %s", exported)
	}
	apptest.Must(t, o.DeleteSession, &pb.DeleteSessionRequest{Name: "short"})
	create()
	if v, err := short.ValidatePayload(o.Ctx, &pb.ValidatePayloadRequest{Type: "deploy_done"}); err != nil || v.Known {
		t.Errorf("after: %v, %v", v, err)
	}
}

func deployFinished() *pb.RegisterMessageTypeRequest {
	return &pb.RegisterMessageTypeRequest{
		Name: "DeployFinished", Aliases: []string{"DeployDone", "deploy-finished"},
		Title: "A deployment is finished.", Sender: "a builder",
		Recipient: "everyone", Example: `{"host": "a"}`, Schema: `{"type": "object", "required": ["host"]}`,
	}
}

func TestRegister_TypeCountsAtOnceInItsSessionAlone(t *testing.T) {
	t.Parallel()
	w := start(t)
	o, lead, b := w.Root(), w.Agent("a", "lead"), w.Agent("b", "")
	if r := sent(o, "deploy_done", `{}`); len(r.Warnings) != 1 {
		t.Errorf("before the registration: %v", r)
	}
	made := apptest.Must(t, lead.RegisterMessageType, deployFinished())
	if made.Replaced || made.Type.Name != "deploy_finished" || strings.Join(made.Type.Aliases, " ") != "deploy_done" ||
		made.Type.Family != "session" || made.Type.RegisteredBy != "a" || made.Type.Revision == 0 {
		t.Errorf("registered %v", made)
	}
	check := func() {
		t.Helper()
		r := sent(o, "DeployDone", `{"host": "a"}`)
		if got := stored(b, r.Id); got != "deploy_finished" || len(r.Warnings) > 0 {
			t.Errorf("stored as %s, %q", got, r.Warnings)
		}
		r = sent(o, "deploy.finished", `{}`)
		if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], `missing property "host"`) {
			t.Errorf("an invalid payload: %v", r)
		}
	}
	check()
	w.Restart()
	check()

	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	other := w.Actor("other", "")
	_, err := other.GetMessageType(o.Ctx, &pb.GetMessageTypeRequest{Name: "deploy_finished"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("in another session: %v", err)
	}

	again := deployFinished()
	again.Schema, again.Example = "", ""
	if r := apptest.Must(t, lead.RegisterMessageType, again); !r.Replaced {
		t.Errorf("registered again: %v", r)
	}
	if r := sent(o, "deploy_done", `{}`); len(r.Warnings) > 0 {
		t.Errorf("after the schema was dropped: %v", r)
	}
}

func TestRegister_Refusals(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead, builder := w.Agent("a", "lead"), w.Agent("b", "builder")
	apptest.Must(t, lead.RegisterMessageType, deployFinished())
	type request = pb.RegisterMessageTypeRequest
	for name, c := range map[string]struct {
		as     *apptest.Actor
		change func(*request)
		code   codes.Code
		says   string
	}{
		"no director":      {builder, func(*request) {}, codes.PermissionDenied, "NOT_A_DIRECTOR"},
		"built-in name":    {lead, func(r *request) { r.Name = "TaskCompleted" }, codes.AlreadyExists, "TYPE_TAKEN"},
		"built-in alias":   {lead, func(r *request) { r.Aliases = []string{"task.done"} }, codes.AlreadyExists, "TYPE_TAKEN"},
		"built-in alias 2": {lead, func(r *request) { r.Aliases = []string{"text"} }, codes.AlreadyExists, "TYPE_TAKEN"},
		"alias of other":   {lead, func(r *request) { r.Name = "deploy_done" }, codes.AlreadyExists, "TYPE_TAKEN"},
		"name of other":    {lead, func(r *request) { r.Name = "rollout" }, codes.AlreadyExists, "TYPE_TAKEN"},
		"no schema":        {lead, func(r *request) { r.Schema = `{"type": 7}` }, codes.InvalidArgument, "schema"},
		"remote schema":    {lead, func(r *request) { r.Schema = `{"$ref": "file:///etc"}` }, codes.InvalidArgument, "schema"},
		"another example":  {lead, func(r *request) { r.Example = `{}` }, codes.InvalidArgument, "example"},
		"endless example":  {lead, func(r *request) { r.Schema, r.Example = doubled(25), `"s"` }, codes.InvalidArgument, "example"},
		"deep schema": {
			lead, func(r *request) { r.Schema = strings.Repeat(`{"not":`, 101) + "true" + strings.Repeat("}", 101) },
			codes.InvalidArgument, "schema",
		},
		"deep example": {
			lead, func(r *request) { r.Schema, r.Example = "{}", strings.Repeat("[", 101)+strings.Repeat("]", 101) },
			codes.InvalidArgument, "example",
		},
		"long in snake_case": {lead, func(r *request) { r.Name = strings.Repeat("aB", 64) }, codes.InvalidArgument, "name"},
	} {
		r := deployFinished()
		c.change(r)
		_, err := c.as.RegisterMessageType(c.as.Ctx, r)
		got := testkit.Reason(err) + " " + strings.Join(testkit.Fields(err), " ")
		if status.Code(err) != c.code || !strings.Contains(got, c.says) {
			t.Errorf("%s: %v (%s), want %v, %s", name, err, got, c.code, c.says)
		}
	}
}

// doubled returns a schema with 2^n branches.
func doubled(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"l%d":{"anyOf":[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"l%d":{"type":"integer"}}}`, n)
	return b.String()
}

func TestSend_SchemaWithBillionsOfBranchesIsCheckedToItsLimit(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("a", "lead")
	w.Agent("b", "")
	apptest.Must(t, lead.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "bomb", Title: "Bomb", Schema: doubled(40)})
	apptest.Must(t, lead.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "small", Title: "Small", Schema: doubled(8)})
	for range 20 {
		r := sent(lead, "bomb", `"s"`)
		if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "more than 10006 steps") {
			t.Fatalf("warnings %q", r.Warnings)
		}
	}
	if r := sent(lead, "bomb", `7`); len(r.Warnings) > 0 { // the first branch fits
		t.Errorf("a payload that fits: %q", r.Warnings)
	}
	if r := sent(lead, "small", `"s"`); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "want integer") {
		t.Errorf("warnings of a small schema: %q", r.Warnings)
	}
	w.Root().Configure(&pb.SessionSettings{InvalidPayloads: pb.TypePolicy_TYPE_POLICY_REFUSE})
	_, err := send(lead, &pb.Message{Type: "bomb", Payload: `"s"`})
	if testkit.Reason(err) != "PAYLOAD_INVALID" {
		t.Errorf("with the policy refuse: %v", err)
	}
}

// An older broker has stored a schema that the broker does not apply any more.
func TestSend_StoredSchemaThatCannotBeAppliedIsAWarning(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("a", "lead")
	w.Agent("b", "")
	apptest.Must(t, lead.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "old", Title: "Old", Schema: "{}"})
	w.Restart(func() {
		testkit.Change(t, w.Dir(), `UPDATE message_types SET schema = ?`, `{"allOf":[true`+strings.Repeat(",true", 2000)+`]}`)
	})
	lead = w.Agent("a", "lead")
	r := sent(lead, "old", `7`)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "not checked") {
		t.Errorf("warnings %q", r.Warnings)
	}
	if n := len(lead.Events("message.payload_invalid")); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestRegister_LimitNamesItself(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	for i := range 200 {
		apptest.Must(t, o.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: fmt.Sprintf("own%d", i)})
	}
	_, err := o.RegisterMessageType(o.Ctx, &pb.RegisterMessageTypeRequest{Name: "own200"})
	if status.Code(err) != codes.ResourceExhausted || testkit.Reason(err) != "TOO_MANY_TYPES" {
		t.Errorf("type 201: %v", err)
	}
	if r := apptest.Must(t, o.RegisterMessageType, &pb.RegisterMessageTypeRequest{Name: "own0", Title: "New."}); !r.Replaced {
		t.Errorf("replaced: %v", r)
	}
}

func TestList_BuiltInAndRegisteredTypesInPages(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	apptest.Must(t, o.RegisterMessageType, deployFinished())
	var names []string
	for token := ""; ; {
		r := apptest.Must(t, o.ListMessageTypes, &pb.ListMessageTypesRequest{PageSize: 7, PageToken: token})
		for _, kind := range r.Types {
			if kind.Schema != "" || kind.Title == "" {
				t.Errorf("listed %v", kind)
			}
			names = append(names, kind.Name)
		}
		if token = r.NextPageToken; token == "" {
			break
		}
	}
	all := strings.Join(names, " ")
	if !strings.Contains(all, " deploy_finished ") || !strings.HasPrefix(all, "acknowledgment alert ") || len(names) < 70 {
		t.Errorf("types: %s", all)
	}
	for request, want := range map[*pb.ListMessageTypesRequest]int{
		{Family: "task"}: 11, {Prefix: "Deploy.F"}: 1, {Family: "session"}: 1, {Family: "task", Prefix: "deploy"}: 0,
	} {
		if r, err := o.ListMessageTypes(o.Ctx, request); err != nil || len(r.Types) != want {
			t.Errorf("%v: %v, %v", request, r, err)
		}
	}
}

func TestGet_TakesEverySpelling(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	for _, spelling := range append(spellings("shutdown_request"), "ShutdownRequested") {
		r := apptest.Must(t, o.GetMessageType, &pb.GetMessageTypeRequest{Name: spelling})
		if r.Type.Name != "shutdown_request" || !r.Type.Directive || r.Type.Schema == "" || r.Type.Example == "" {
			t.Errorf("%s: %v", spelling, r.Type)
		}
	}
	_, err := o.GetMessageType(o.Ctx, &pb.GetMessageTypeRequest{Name: "ShutdownReqest"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "shutdown_request") {
		t.Errorf("a misspelled type: %v", err)
	}
}
