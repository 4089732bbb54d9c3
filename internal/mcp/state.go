package mcp

import (
	"encoding/json"
	"fmt"
	"strconv"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// statePage is how many keys a result lists.
const statePage = 50

func getState(c *call) error {
	request := &pb.GetStateRequest{Namespace: c.arg("namespace"), Key: c.arg("key"), Markdown: true}
	answer, err := c.api.GetState(c.ctx, request)
	if err != nil {
		return err
	}
	for last := answer.GetLastEntry(); last > 0 && last < answer.GetEntry().GetEntries(); last = answer.GetLastEntry() {
		if len(answer.GetMarkdown()) > 2*mostText { // a result has no more
			break
		}
		request.AtRevision, request.AfterEntry = answer.GetEntry().GetRevision(), last
		more, err := c.api.GetState(c.ctx, request)
		if err != nil {
			return err
		}
		answer.Markdown += more.GetMarkdown()
		if answer.LastEntry = more.GetLastEntry(); answer.LastEntry <= last {
			break
		}
	}
	c.voice.State(c.w, answer, true)
	return nil
}

// compareRevision reads the revision on which a change depends; nil for none.
func compareRevision(c *call) (*int64, error) {
	if !c.has("revision") {
		return nil, nil
	}
	n, err := strconv.ParseInt(c.arg("revision"), 10, 64)
	if err != nil {
		return nil, argumentf("revision %s is no number", quote(c.arg("revision")))
	}
	return &n, nil
}

// stateValue is the value that a call gives, with the type that it has in JSON.
func stateValue(c *call) *pb.StateValue {
	text := c.arg("value")
	switch v := c.raw["value"].(type) {
	case string:
		return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: text}}
	case bool:
		return &pb.StateValue{Value: &pb.StateValue_BooleanValue{BooleanValue: v}}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: n}}
		}
	}
	return &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: text}}
}

func putState(c *call) error {
	revision, err := compareRevision(c)
	if err != nil {
		return err
	}
	answer, err := c.api.PutState(c.ctx, &pb.PutStateRequest{
		RequestId: c.requestID, Namespace: c.arg("namespace"), Key: c.arg("key"), Value: stateValue(c),
		CompareRevision: revision,
	})
	if err != nil {
		return err
	}
	e := answer.GetEntry()
	return c.say("put %s, version %d, revision %d", prompt.KeyName(e), e.GetVersion(), e.GetRevision())
}

func appendState(c *call) error {
	answer, err := c.api.AppendState(c.ctx, &pb.AppendStateRequest{
		RequestId: c.requestID, Namespace: c.arg("namespace"), Key: c.arg("key"), Text: c.arg("value"),
	})
	if err != nil {
		return err
	}
	return c.say("added entry %d to %s, revision %d", answer.GetNumber(), prompt.KeyName(answer.GetEntry()),
		answer.GetEntry().GetRevision())
}

func listState(c *call) error {
	page, err := c.api.ListState(c.ctx, &pb.ListStateRequest{
		Namespace: c.arg("namespace"), KeyPrefix: c.arg("key"), Values: true, PageSize: statePage,
	})
	if err != nil {
		return err
	}
	n := 0
	for _, e := range page.GetEntries() {
		if e.GetNamespace() == "bridge" && !c.has("namespace") { // the bridges' keys are for no user
			continue
		}
		n++
		fmt.Fprintln(c.w, c.voice.StateLine(e))
	}
	return c.none(n, "keys", page.GetNextPageToken())
}

func deleteState(c *call) error {
	revision, err := compareRevision(c)
	if err != nil {
		return err
	}
	answer, err := c.api.DeleteState(c.ctx, &pb.DeleteStateRequest{
		RequestId: c.requestID, Namespace: c.arg("namespace"), Key: c.arg("key"), CompareRevision: revision,
	})
	switch {
	case err != nil:
		return err
	case answer.GetDeleted():
		return c.say("deleted %s, revision %d", c.arg("key"), answer.GetRevision())
	}
	return c.say("%s was not there", c.arg("key"))
}
