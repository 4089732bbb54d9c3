package artifacts

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strings"

	"golang.org/x/text/unicode/norm"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// The lists, for their page tokens.
const (
	artifactList = "artifacts"
	versionList  = "artifact_versions"
)

// Service is the ArtifactService of the API.
type Service struct {
	pb.UnimplementedArtifactServiceServer
	repository *Repository
}

// NewService returns the service of a repository.
func NewService(r *Repository) *Service { return &Service{repository: r} }

// UploadArtifact implements pb.ArtifactServiceServer.
func (s *Service) UploadArtifact(stream grpc.ClientStreamingServer[pb.UploadArtifactRequest, pb.UploadArtifactResponse]) error {
	ctx := stream.Context()
	frames := newFrames(s.repository, stream)
	first, err := frames.next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	in := first.GetHeader()
	if in == nil {
		return fault.Field("header", "is missing: the first frame of an upload carries the header")
	}
	h, err := headerOf(in)
	if err != nil {
		return err
	}
	request := func(sum string) (idempotency.Request, error) {
		whole := proto.CloneOf(in)
		whole.Sha256 = sum
		return idempotency.Of(ctx, "UploadArtifact", in.GetRequestId(), whole)
	}
	if _, err := request(""); err != nil { // before the client sends the content
		return err
	}
	upload, stored, err := s.repository.Begin(ctx, identity.FromContext(ctx), h, request)
	if err != nil {
		return err
	}
	if stored != nil {
		return stream.SendAndClose(uploadProto(stored, true))
	}
	defer upload.Close()
	if err := frames.copy(ctx, upload); err != nil {
		return err
	}
	if stored, err = upload.Commit(ctx); err != nil {
		return err
	}
	return stream.SendAndClose(uploadProto(stored, false))
}

// headerOf checks the header of an upload.
func headerOf(in *pb.ArtifactHeader) (Header, error) {
	var c validate.Check
	h := Header{
		Name: nameOf(&c, "header.name", in.GetName()), Size: in.GetSize(), SHA256: hashOf(&c, "header.sha256", in.GetSha256()),
		MediaType: in.GetMediaType(), Description: in.GetDescription(), Labels: in.GetLabels(), TaskID: in.GetTaskId(), Announce: in.GetAnnounce(),
	}
	if name := h.Name; name != "" {
		if i := strings.IndexAny(name, "*?"); i >= 0 {
			c.Fail("header.name", "has a %q at byte %d; a name has no wildcard", name[i], i)
		}
		if strings.HasSuffix(name, "/") {
			c.Fail("header.name", "ends in /; it is the name of one file")
		}
		if base, version := reference(name); version > 0 {
			c.Fail("header.name", "ends in @%d, which stands for a version in a reference; the name may be %q", version, base)
		}
	}
	if h.Size < 0 {
		c.Fail("header.size", "is %d; it is the number of bytes of the content", h.Size)
	}
	c.Line("header.media_type", h.MediaType, validate.MaxLabel)
	c.Line("header.description", h.Description, validate.MaxLine)
	c.Labels("header.labels", h.Labels)
	c.Line("header.task_id", h.TaskID, validate.MaxID)
	return h, c.Err()
}

// nameOf returns a name in the form in which the broker stores it.
func nameOf(c *validate.Check, field, raw string) string {
	if !c.Text(field, raw, validate.MaxPath) {
		return ""
	}
	name := norm.NFC.String(raw)
	if len(name) > validate.MaxPath {
		c.Fail(field, "has %d bytes in Unicode NFC; at most %d are allowed", len(name), validate.MaxPath)
		return ""
	}
	if wrong := validate.PathFault(name); wrong != "" {
		c.Fail(field, "%s", wrong)
		return ""
	}
	return name
}

// hashOf returns a hash in lower case, or nothing.
func hashOf(c *validate.Check, field, raw string) string {
	if raw == "" {
		return ""
	}
	sum := strings.ToLower(raw)
	if b, err := hex.DecodeString(sum); err != nil || len(b) != 32 {
		c.Fail(field, "is no SHA-256: 64 hexadecimal digits are needed")
	}
	return sum
}

// DownloadArtifact implements pb.ArtifactServiceServer.
func (s *Service) DownloadArtifact(in *pb.DownloadArtifactRequest, stream grpc.ServerStreamingServer[pb.DownloadArtifactResponse]) error {
	var c validate.Check
	p := Part{Version: in.GetVersion(), SHA256: hashOf(&c, "sha256", in.GetSha256()), Offset: in.GetOffset(), Length: in.GetLength()}
	switch {
	case p.SHA256 == "":
		p.Name = nameOf(&c, "name", in.GetName())
	case in.GetName() != "" || p.Version != 0:
		c.Fail("sha256", "is given together with a name or version; give one of them")
	}
	c.Between("version", p.Version, 0, math.MaxInt64)
	c.Between("offset", p.Offset, 0, math.MaxInt64)
	c.Between("length", p.Length, 0, math.MaxInt64)
	if err := c.Err(); err != nil {
		return err
	}
	begin := func(v Version) error {
		return stream.Send(&pb.DownloadArtifactResponse{Frame: &pb.DownloadArtifactResponse_Artifact{Artifact: versionProto(&v)}})
	}
	return s.repository.Download(stream.Context(), identity.FromContext(stream.Context()), p, begin, func(chunk []byte) error {
		return stream.Send(&pb.DownloadArtifactResponse{Frame: &pb.DownloadArtifactResponse_Chunk{Chunk: chunk}})
	})
}

// GetArtifact implements pb.ArtifactServiceServer.
func (s *Service) GetArtifact(ctx context.Context, in *pb.GetArtifactRequest) (*pb.GetArtifactResponse, error) {
	var c validate.Check
	name := nameOf(&c, "name", in.GetName())
	c.Between("version", in.GetVersion(), 0, math.MaxInt64)
	limit := c.PageSize("page_size", in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	below := int64(math.MaxInt64)
	if err := page.Parse(versionList, in.GetPageToken(), &below); err != nil {
		return nil, err
	}
	f, err := s.repository.Get(ctx, identity.FromContext(ctx), name, in.GetVersion(), below, limit)
	if err != nil {
		return nil, err
	}
	out := &pb.GetArtifactResponse{Artifact: versionProto(&f.Version), Versions: versionsProto(f.Page.Versions), Revision: f.Page.Revision}
	if f.Page.More {
		out.NextPageToken = page.Token(versionList, f.Page.Versions[limit-1].Number)
	}
	return out, nil
}

// ListArtifacts implements pb.ArtifactServiceServer.
func (s *Service) ListArtifacts(ctx context.Context, in *pb.ListArtifactsRequest) (*pb.ListArtifactsResponse, error) {
	var c validate.Check
	sel := Selection{
		Prefix: norm.NFC.String(in.GetNamePrefix()), Agent: in.GetAgent(), TaskID: in.GetTaskId(),
		SHA256: hashOf(&c, "sha256", in.GetSha256()), All: in.GetAllVersions(), Limit: c.PageSize("page_size", in.GetPageSize()),
	}
	c.Line("name_prefix", sel.Prefix, validate.MaxPath)
	c.OptionalName("agent", sel.Agent)
	c.Line("task_id", sel.TaskID, validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if in.GetPageToken() != "" {
		sel.After = &Position{}
		if err := page.Parse(artifactList, in.GetPageToken(), sel.After); err != nil {
			return nil, err
		}
	}
	l, err := s.repository.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListArtifactsResponse{Artifacts: versionsProto(l.Versions), Revision: l.Revision, StoredBytes: l.Stored, StoredLimit: l.Limit}
	if l.More {
		last := &l.Versions[len(l.Versions)-1]
		out.NextPageToken = page.Token(artifactList, Position{last.Name, last.Number})
	}
	return out, nil
}

// DeleteArtifact implements pb.ArtifactServiceServer.
func (s *Service) DeleteArtifact(ctx context.Context, in *pb.DeleteArtifactRequest) (*pb.DeleteArtifactResponse, error) {
	var c validate.Check
	name := nameOf(&c, "name", in.GetName())
	c.Between("version", in.GetVersion(), 0, math.MaxInt64)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "DeleteArtifact", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	d, err := s.repository.Delete(ctx, identity.FromContext(ctx), req, name, in.GetVersion())
	if err != nil {
		return nil, err
	}
	return &pb.DeleteArtifactResponse{Versions: d.Versions, FreedBytes: d.Freed, Revision: d.Revision}, nil
}

func uploadProto(s *Stored, skipped bool) *pb.UploadArtifactResponse {
	return &pb.UploadArtifactResponse{Artifact: versionProto(&s.Version), Skipped: skipped, Unchanged: s.Unchanged}
}

func versionProto(v *Version) *pb.ArtifactVersion {
	return &pb.ArtifactVersion{
		Name: v.Name, Version: v.Number, Revision: v.Revision, Size: v.Size, Sha256: v.SHA256, MediaType: v.MediaType,
		Description: v.Description, Labels: v.Labels, TaskId: v.TaskID, Author: v.Author, CreatedAt: timestamppb.New(v.CreatedAt),
		Newest: v.Newest(),
	}
}

func versionsProto(versions []Version) []*pb.ArtifactVersion {
	list := make([]*pb.ArtifactVersion, len(versions))
	for i := range versions {
		list[i] = versionProto(&versions[i])
	}
	return list
}
