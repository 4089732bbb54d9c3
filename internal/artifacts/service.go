package artifacts

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"golang.org/x/text/unicode/norm"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/page"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// The lists, for their page tokens.
const (
	artifactList = "artifacts"
	versionList  = "artifact_versions"
)

// UploadArtifact implements pb.ArtifactServiceServer.
func (s *Service) UploadArtifact(
	stream grpc.ClientStreamingServer[pb.UploadArtifactRequest, pb.UploadArtifactResponse],
) error {
	ctx := stream.Context()
	frames := newFrames(s, stream)
	first, err := frames.next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	h := first.GetHeader()
	if h == nil {
		return fault.Field("header", "is missing: the first frame of an upload carries the header")
	}
	if err := checkHeader(h); err != nil {
		return err
	}
	if _, err := request(ctx, h); err != nil { // before the client sends the content
		return err
	}
	u, out, err := s.begin(ctx, h)
	if err != nil {
		return err
	}
	if u != nil {
		defer u.close()
		if err := frames.copy(ctx, u); err != nil {
			return err
		}
		if out, err = u.commit(ctx); err != nil {
			return err
		}
	}
	return stream.SendAndClose(out)
}

// checkHeader checks the header of an upload, and gives its name and its hash the form in which the broker
// stores them.
func checkHeader(h *pb.ArtifactHeader) error {
	var c validate.Check
	h.Name, h.Sha256 = pathOf(&c, "header.name", h.GetName()), hashOf(&c, "header.sha256", h.GetSha256())
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
	c.Line("header.task_id", h.TaskId, validate.MaxID)
	return c.Err()
}

// pathOf returns a name in the form in which the broker stores it.
func pathOf(c *validate.Check, field, raw string) string {
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

// GetArtifact implements pb.ArtifactServiceServer.
func (s *Service) GetArtifact(ctx context.Context, in *pb.GetArtifactRequest) (*pb.GetArtifactResponse, error) {
	var c validate.Check
	name := pathOf(&c, "name", in.GetName())
	limit := page.Size(in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	below := int64(math.MaxInt64)
	if err := page.Parse(versionList, in.GetPageToken(), &below); err != nil {
		return nil, err
	}
	out := &pb.GetArtifactResponse{}
	more := false
	err := s.Read(ctx, func(snap *store.Snapshot, of directory.Session) (err error) {
		out.Revision = snap.Revision()
		if out.Artifact, err = find(snap, of.ID, name, in.GetVersion()); err != nil {
			return err
		}
		after := name + "\x01" // no name has a control character, and a text of PostgreSQL no zero byte
		out.Versions, more, err = pageOf(snap, limit, listAll, of.ID, name, name, below, after, "", "", "", "")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get artifact: %w", err)
	}
	if more {
		out.NextPageToken = page.Token(versionList, out.Versions[limit-1].Version)
	}
	return out, nil
}

// A position is a place in a list of versions: versions of later names, and of Name those below Version.
type position struct {
	Name    string `json:"name"`
	Version int64  `json:"version"`
}

// lastRune is above all text that begins with a prefix, when it is added to the prefix.
const lastRune = "\U0010FFFF"

// ListArtifacts implements pb.ArtifactServiceServer.
func (s *Service) ListArtifacts(ctx context.Context, in *pb.ListArtifactsRequest) (*pb.ListArtifactsResponse, error) {
	var c validate.Check
	prefix, sum := norm.NFC.String(in.GetNamePrefix()), hashOf(&c, "sha256", in.GetSha256())
	limit := page.Size(in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	from := position{prefix, math.MaxInt64}
	if err := page.Parse(artifactList, in.GetPageToken(), &from); err != nil {
		return nil, err
	}
	out := &pb.ListArtifactsResponse{}
	more := false
	err := s.Read(ctx, func(snap *store.Snapshot, of directory.Session) error {
		sums, err := usageOf(snap, of.ID)
		if err != nil {
			return err
		}
		out.Revision, out.StoredBytes, out.StoredLimit = snap.Revision(), sums.bytes, of.Settings.GetArtifactTotalLimit()
		query, args := listNewest, []any{
			of.ID, from.Name, from.Name, from.Version, prefix + lastRune, in.GetAgent(), in.GetAgent(), in.GetTaskId(),
			in.GetTaskId(),
		}
		switch {
		case sum != "":
			query, args = listContent, append(args, sum)
		case in.GetAllVersions():
			query = listAll
		}
		out.Artifacts, more, err = pageOf(snap, limit, query, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list artifacts: %w", err)
	}
	if more {
		last := out.Artifacts[limit-1]
		out.NextPageToken = page.Token(artifactList, position{last.Name, last.Version})
	}
	return out, nil
}

// pageOf reads up to limit versions, and reports whether there are more. The query takes a limit as its last
// argument.
func pageOf(q store.Querier, limit int, query string, args ...any) (list []*pb.ArtifactVersion, more bool, err error) {
	list, err = versions(q.Query(query, append(args, limit+1)...))
	more = len(list) > limit
	return list[:min(len(list), limit)], more, err
}

// A deleted is the outcome of a deletion.
type deleted struct {
	Versions int64
	Freed    int64 // bytes of contents that the session does not have any more
	Revision int64
}

// DeleteArtifact implements pb.ArtifactServiceServer. When it returns, the contents that no session has
// any more are removed.
func (s *Service) DeleteArtifact(
	ctx context.Context, in *pb.DeleteArtifactRequest,
) (*pb.DeleteArtifactResponse, error) {
	var c validate.Check
	name := pathOf(&c, "name", in.GetName())
	if err := c.Err(); err != nil {
		return nil, err
	}
	var d deleted
	_, err := s.Once(ctx, s.Store.Write, in, &d, func(t *work.Tx) (err error) {
		d, err = s.delete(t, name, in.GetVersion())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("delete artifact: %w", err)
	}
	s.collect()
	return &pb.DeleteArtifactResponse{Versions: d.Versions, FreedBytes: d.Freed, Revision: d.Revision}, nil
}

// OfTask returns the newest versions that name a task, at most limit.
func (s *Service) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	list, err := versions(q.Query(selectOfTask, session, task, limit))
	items := make([]work.Item, len(list))
	for i, v := range list {
		items[i] = work.Item{Kind: noun, ID: nameOf(v), Revision: v.Revision, Title: v.Description}
	}
	return items, err
}
