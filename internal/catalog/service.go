package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/page"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// typeList names the list that page tokens belong to.
const typeList = "ListMessageTypes"

// ListMessageTypes implements pb.CatalogServiceServer.
func (s *Service) ListMessageTypes(
	ctx context.Context, in *pb.ListMessageTypesRequest,
) (*pb.ListMessageTypesResponse, error) {
	size := page.Size(in.GetPageSize())
	after := ""
	if err := page.Parse(typeList, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	set, _, revision, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list message types: %w", err)
	}
	prefix, out := msgtype.Fold(in.GetPrefix()), &pb.ListMessageTypesResponse{Revision: revision}
	for _, t := range set.Types(in.GetFamily()) {
		if t.Name <= after || !strings.HasPrefix(t.Name, prefix) {
			continue
		}
		if len(out.Types) == size {
			out.NextPageToken = page.Token(typeList, out.Types[size-1].Name)
			break
		}
		p := typeProto(t)
		p.Example, p.Schema = "", ""
		out.Types = append(out.Types, p)
	}
	return out, nil
}

// GetMessageType implements pb.CatalogServiceServer.
func (s *Service) GetMessageType(
	ctx context.Context, in *pb.GetMessageTypeRequest,
) (*pb.GetMessageTypeResponse, error) {
	set, _, revision, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("get message type: %w", err)
	}
	name, t := set.Lookup(in.GetName())
	if t == nil {
		return nil, fault.Missing("type", name, "neither the catalog nor the session has a type %q; %s", name,
			nearest.Hint(name, set.Names()))
	}
	return &pb.GetMessageTypeResponse{Type: typeProto(t), Revision: revision}, nil
}

// RegisterMessageType implements pb.CatalogServiceServer.
func (s *Service) RegisterMessageType(
	ctx context.Context, in *pb.RegisterMessageTypeRequest,
) (*pb.RegisterMessageTypeResponse, error) {
	d, err := definition(in)
	if err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "RegisterMessageType", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	var out registered
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &out, func() (err error) {
			out, err = s.register(tx, identity.FromContext(ctx), d)
			return err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register message type: %w", err)
	}
	return &pb.RegisterMessageTypeResponse{Type: typeProto(out.Type), Replaced: out.Replaced}, nil
}

// ValidatePayload implements pb.CatalogServiceServer.
func (s *Service) ValidatePayload(
	ctx context.Context, in *pb.ValidatePayloadRequest,
) (*pb.ValidatePayloadResponse, error) {
	set, session, _, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("validate payload: %w", err)
	}
	name, doubt := set.Check(in.GetType(), in.GetPayload())
	out := &pb.ValidatePayloadResponse{Verdict: pb.PayloadVerdict_PAYLOAD_VERDICT_ACCEPTED, Type: name, Known: true}
	if doubt != nil {
		if out.Known = !doubt.Unknown; doubt.Unknown {
			out.Nearest = nearest.Names(name, set.Names())
		}
		for _, f := range doubt.Faults {
			out.Faults = append(out.Faults, &pb.PayloadFault{Pointer: f.Pointer, Problem: f.Problem})
		}
	}
	warnings, refusal := doubt.Judge(session.Types())
	switch {
	case refusal != nil:
		out.Verdict, out.Messages = pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED, []string{refusal.Error()}
	case len(warnings) > 0:
		out.Verdict, out.Messages = pb.PayloadVerdict_PAYLOAD_VERDICT_WARNED, warnings
	}
	return out, nil
}

// definition checks a type that is to be registered, and folds its names.
func definition(in *pb.RegisterMessageTypeRequest) (*pb.MessageType, error) {
	var c validate.Check
	d := &pb.MessageType{
		Name: folded(&c, "name", in.GetName()), Title: in.GetTitle(), Sender: in.GetSender(), Recipient: in.GetRecipient(),
		Example: in.GetExample(), Schema: in.GetSchema(), Aliases: []string{},
	}
	for i, alias := range in.GetAliases() {
		d.Aliases = append(d.Aliases, folded(&c, fmt.Sprintf("aliases[%d]", i), alias))
	}
	slices.Sort(d.Aliases)
	d.Aliases = slices.DeleteFunc(slices.Compact(d.Aliases), func(alias string) bool { return alias == d.Name })
	if err := c.Err(); err != nil || d.Schema == "" {
		return d, err
	}
	schema, err := msgtype.CompileSchema(d.Schema)
	if err != nil {
		return d, fault.Field("schema", "%v", err)
	}
	if d.Example == "" {
		return d, nil
	}
	if faults := schema.Validate(d.Example); len(faults) > 0 {
		return d, fault.Field("example", "does not fit the schema: at %s", msgtype.Join(faults))
	}
	return d, nil
}

// folded returns a name in snake_case, and checks that it is still one.
func folded(c *validate.Check, field, name string) string {
	name = msgtype.Fold(name)
	if len(name) > validate.MaxID {
		c.Fail(field, "is longer than %d bytes in snake_case", validate.MaxID)
	}
	return name
}

func typeProto(t *msgtype.Type) *pb.MessageType {
	return &pb.MessageType{
		Name: t.Name, Aliases: t.Aliases, Family: t.Family, Title: t.Title, Sender: t.Sender, Recipient: t.Recipient,
		Example: t.Example, Schema: t.Schema, Directive: t.Directive, RegisteredBy: t.RegisteredBy, Revision: t.Revision,
		Version: t.Version, BuiltIn: t.Family != msgtype.SessionFamily, RegisteredAt: work.Stamp(t.RegisteredAt),
	}
}
