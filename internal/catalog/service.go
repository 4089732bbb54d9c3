package catalog

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// Limits of a request.
const (
	maxAliases = 20
	maxText    = 64 << 10  // bytes of a schema, and of an example
	maxPayload = 256 << 10 // bytes
)

// typeList names the list that page tokens belong to.
const typeList = "ListMessageTypes"

// Service is the CatalogService of the API.
type Service struct {
	pb.UnimplementedCatalogServiceServer
	catalog *Catalog
}

// NewService returns the service of a catalog.
func NewService(c *Catalog) *Service { return &Service{catalog: c} }

// ListMessageTypes implements pb.CatalogServiceServer.
func (s *Service) ListMessageTypes(
	ctx context.Context, in *pb.ListMessageTypesRequest,
) (*pb.ListMessageTypesResponse, error) {
	var c validate.Check
	c.OptionalName("family", in.GetFamily())
	c.OptionalName("prefix", in.GetPrefix())
	size := c.PageSize("page_size", in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	after := ""
	if err := page.Parse(typeList, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	prefix := msgtype.Fold(in.GetPrefix())
	found, err := s.catalog.List(ctx, identity.FromContext(ctx).Session, in.GetFamily(), prefix, after, size)
	if err != nil {
		return nil, err
	}
	out := &pb.ListMessageTypesResponse{Revision: found.Revision}
	for _, t := range found.Types {
		p := typeProto(t)
		p.Example, p.Schema = "", ""
		out.Types = append(out.Types, p)
	}
	if found.More {
		out.NextPageToken = page.Token(typeList, found.Types[len(found.Types)-1].Name)
	}
	return out, nil
}

// GetMessageType implements pb.CatalogServiceServer.
func (s *Service) GetMessageType(
	ctx context.Context, in *pb.GetMessageTypeRequest,
) (*pb.GetMessageTypeResponse, error) {
	var c validate.Check
	c.Name("name", in.GetName())
	if err := c.Err(); err != nil {
		return nil, err
	}
	t, revision, err := s.catalog.Get(ctx, identity.FromContext(ctx).Session, in.GetName())
	if err != nil {
		return nil, err
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
	out, err := s.catalog.Register(ctx, identity.FromContext(ctx), req, d)
	if err != nil {
		return nil, err
	}
	return &pb.RegisterMessageTypeResponse{Type: typeProto(out.Type), Replaced: out.Replaced}, nil
}

// ValidatePayload implements pb.CatalogServiceServer.
func (s *Service) ValidatePayload(
	ctx context.Context, in *pb.ValidatePayloadRequest,
) (*pb.ValidatePayloadResponse, error) {
	var c validate.Check
	c.Name("type", in.GetType())
	c.JSON("payload", in.GetPayload(), maxPayload)
	if err := c.Err(); err != nil {
		return nil, err
	}
	v, err := s.catalog.Validate(ctx, identity.FromContext(ctx).Session, in.GetType(), in.GetPayload())
	if err != nil {
		return nil, err
	}
	out := &pb.ValidatePayloadResponse{
		Verdict: pb.PayloadVerdict_PAYLOAD_VERDICT_ACCEPTED,
		Type:    v.Type, Known: true, Nearest: v.Nearest, Messages: v.Warnings,
	}
	if v.Doubt != nil {
		out.Known = !v.Doubt.Unknown
		for _, f := range v.Doubt.Faults {
			out.Faults = append(out.Faults, &pb.PayloadFault{Pointer: f.Pointer, Problem: f.Problem})
		}
	}
	if len(v.Warnings) > 0 {
		out.Verdict = pb.PayloadVerdict_PAYLOAD_VERDICT_WARNED
	}
	if v.Refusal != nil {
		out.Verdict, out.Messages = pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED, []string{v.Refusal.Error()}
	}
	return out, nil
}

// definition checks a type that is to be registered, and folds its names.
func definition(in *pb.RegisterMessageTypeRequest) (Definition, error) {
	var c validate.Check
	d := Definition{
		Name: folded(&c, "name", in.GetName()), Title: in.GetTitle(), Sender: in.GetSender(), Recipient: in.GetRecipient(),
		Example: in.GetExample(), Schema: in.GetSchema(), Aliases: []string{},
	}
	c.Count("aliases", len(in.GetAliases()), maxAliases)
	for i, alias := range in.GetAliases()[:min(len(in.GetAliases()), maxAliases)] {
		d.Aliases = append(d.Aliases, folded(&c, fmt.Sprintf("aliases[%d]", i), alias))
	}
	slices.Sort(d.Aliases)
	d.Aliases = slices.DeleteFunc(slices.Compact(d.Aliases), func(alias string) bool { return alias == d.Name })
	c.Line("title", d.Title, validate.MaxLine)
	c.Line("sender", d.Sender, validate.MaxLine)
	c.Line("recipient", d.Recipient, validate.MaxLine)
	c.JSON("example", d.Example, maxText)
	c.JSON("schema", d.Schema, maxText)
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

// folded checks a name and returns it in snake_case.
func folded(c *validate.Check, field, name string) string {
	c.Name(field, name)
	name = msgtype.Fold(name)
	if len(name) > validate.MaxID {
		c.Fail(field, "is longer than %d bytes in snake_case", validate.MaxID)
	}
	return name
}

func typeProto(t *msgtype.Type) *pb.MessageType {
	out := &pb.MessageType{
		Name: t.Name, Aliases: t.Aliases, Family: t.Family, Title: t.Title, Sender: t.Sender, Recipient: t.Recipient,
		Example: t.Example, Schema: t.Schema, Directive: t.Directive, RegisteredBy: t.RegisteredBy, Revision: t.Revision,
		Version: t.Version, BuiltIn: t.Family != msgtype.SessionFamily,
	}
	if !t.RegisteredAt.IsZero() {
		out.RegisteredAt = timestamppb.New(t.RegisteredAt)
	}
	return out
}
