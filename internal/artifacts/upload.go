package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// An upload is an upload under way. It belongs to one goroutine, which calls close in the end.
type upload struct {
	*Service
	header *pb.ArtifactHeader // from commit on with the hash of the content
	draft  Draft
	sum    hash.Hash
	size   int64

	session  int64
	reserved bool // the session's total includes the size; the mutex of the Service guards it
}

// errUnknownContent is why an upload cannot be skipped.
var errUnknownContent = errors.New("the session does not have this content")

// begin begins an upload. If the header has the hash of a content that the session has, begin stores
// the version and returns the answer in place of an upload.
//
// The announced size counts against the limits of the session from here on until commit or close. An
// upload without a hash counts even if the session has its content.
//
// Errors: fault.Exhausted for an artifact or session that becomes too large, for too many artifacts
// and for a disk that is nearly full, or would be with this upload; otherwise as directory.Directory.
func (s *Service) begin(ctx context.Context, h *pb.ArtifactHeader) (*upload, *pb.UploadArtifactResponse, error) {
	if s.Disk != nil {
		if err := s.Disk.CheckUpload(h.Size); err != nil {
			return nil, nil, err
		}
	}
	u := &upload{Service: s, header: h, sum: sha256.New()}
	known := false
	err := s.Store.Write(ctx, func(tx *store.Tx) error {
		u.release() // what an earlier run of the function has reserved
		known = false
		t, err := s.Begin(tx, identity.FromContext(ctx))
		if err != nil {
			return err
		}
		if known, err = s.admit(tx, t.Session, h.Sha256, h.Size, s.underWay(t.Session.ID)); err == nil && !known {
			u.reserve(t.Session.ID)
		}
		return err
	})
	if err != nil {
		u.release() // the batch of the function may have been lost after it
		return nil, nil, fmt.Errorf("begin upload: %w", err)
	}
	if known {
		out, err := u.skip(ctx)
		if !errors.Is(err, errUnknownContent) {
			return nil, out, err
		}
	}
	if u.draft, err = s.contents.Create(ctx); err != nil {
		u.release()
		return nil, nil, err
	}
	return u, nil, nil
}

// underWay returns the announced bytes of a session's uploads that are under way.
func (s *Service) underWay(session int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uploading[session]
}

// reserve counts the size of the upload against the session's total.
func (u *upload) reserve(session int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.session, u.reserved = session, true
	u.uploading[session] += u.header.Size
}

// reservation returns how many bytes of the uploads under way are those of this upload.
func (u *upload) reservation() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reserved {
		return u.header.Size
	}
	return 0
}

// release ends the effect of reserve. Further calls do nothing.
func (u *upload) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.reserved {
		return
	}
	u.reserved = false
	if u.uploading[u.session] -= u.header.Size; u.uploading[u.session] == 0 {
		delete(u.uploading, u.session)
	}
}

// admit checks the limits for a content beside other bytes that are under way, and reports whether the
// session already has it. A content without a hash counts as new.
func (s *Service) admit(
	q store.Querier, in directory.Session, sum string, size, underWay int64,
) (known bool, err error) {
	if limit := in.Settings.GetArtifactLimit(); limit > 0 && size > limit {
		return false, full("ARTIFACT_TOO_LARGE", "artifact_limit", limit,
			"the content has %d bytes; an artifact of this session has at most %d bytes (artifact_limit)", size, limit)
	}
	if sum != "" {
		var stored, versions int64
		err = q.QueryRow(selectContent, in.ID, sum).Scan(&stored, &versions)
		switch {
		case err == nil && stored != size:
			return false, mismatch("SIZE_MISMATCH", "size", "is %d; the content with this hash has %d bytes", size, stored)
		case err == nil:
			return true, nil
		case !errors.Is(err, store.ErrNoRows):
			return false, err
		}
	}
	u, err := usageOf(q, in.ID)
	limit := in.Settings.GetArtifactTotalLimit()
	if err == nil && limit > 0 && size > limit-u.bytes-underWay {
		e := full("ARTIFACTS_FULL", "artifact_total_limit", limit,
			"the artifacts of this session have %d bytes, its uploads under way %d, and %d more are beyond its limit of %d bytes "+
				"(artifact_total_limit): delete old versions first, or send the hash of a content that the session has",
			u.bytes, underWay, size, limit)
		e.RetryAfter = fullRetry
		err = e
	}
	return false, err
}

// write adds the next bytes of the content.
func (u *upload) write(chunk []byte) error {
	if u.size+int64(len(chunk)) > u.header.Size {
		return mismatch("SIZE_MISMATCH", "size", "is %d, and the content has more bytes", u.header.Size)
	}
	if u.Disk != nil {
		if err := u.Disk.Written(int64(len(chunk))); err != nil {
			return err
		}
	}
	if _, err := u.draft.Write(chunk); err != nil {
		return err
	}
	_, _ = u.sum.Write(chunk) // a hash never fails
	u.size += int64(len(chunk))
	u.transferred("upload", int64(len(chunk)))
	return nil
}

// commit stores the version. Errors: fault.Invalid if the content is not what the header announces;
// otherwise as begin.
func (u *upload) commit(ctx context.Context) (*pb.UploadArtifactResponse, error) {
	sum := hex.EncodeToString(u.sum.Sum(nil))
	switch {
	case u.size != u.header.Size:
		return nil, mismatch("SIZE_MISMATCH", "size", "is %d, and the content has %d bytes", u.header.Size, u.size)
	case u.header.Sha256 != "" && u.header.Sha256 != sum:
		return nil, mismatch("HASH_MISMATCH", "sha256", "is %s, and the content has %s", u.header.Sha256, sum)
	}
	u.header.Sha256 = sum
	out, err := u.publish(ctx)
	if err != nil {
		u.abandon(sum)
		return nil, fmt.Errorf("store an upload: %w", err)
	}
	return out, nil
}

// publish keeps the content, then commits its row.
func (u *upload) publish(ctx context.Context) (*pb.UploadArtifactResponse, error) {
	u.publishing.RLock()
	defer u.publishing.RUnlock()
	if err := u.draft.Keep(u.header.Sha256); err != nil {
		return nil, err
	}
	return u.record(ctx, false)
}

// skip stores a version of a content that the session has: errUnknownContent if it lost the content
// meanwhile.
func (u *upload) skip(ctx context.Context) (*pb.UploadArtifactResponse, error) {
	u.publishing.RLock()
	defer u.publishing.RUnlock()
	here, err := has(ctx, u.contents, u.header.Sha256, u.header.Size)
	if err == nil && !here {
		err = errUnknownContent
	}
	if err != nil {
		return nil, err
	}
	return u.record(ctx, true)
}

// abandon removes a content whose row could not be stored, unless another upload has stored one.
func (s *Service) abandon(sum string) {
	s.mu.Lock()
	s.dropped = append(s.dropped, sum)
	s.mu.Unlock()
	s.collect()
}

// close ends the upload. Without a commit before, nothing of it remains.
func (u *upload) close() {
	u.release()
	if err := u.draft.Close(); err != nil {
		u.log.Warn("the content of an upload could not be removed; the next start removes it", zap.Error(err))
	}
}

// request returns the identity of the request, which includes the hash of the content.
func request(ctx context.Context, h *pb.ArtifactHeader) (idempotency.Request, error) {
	return idempotency.Of(ctx, "UploadArtifact", h.GetRequestId(), h)
}

// record stores the version in one transaction. If known is set, the session must have the content.
func (u *upload) record(ctx context.Context, known bool) (*pb.UploadArtifactResponse, error) {
	req, err := request(ctx, u.header)
	if err != nil {
		return nil, err
	}
	out := &pb.UploadArtifactResponse{Skipped: known}
	err = u.Store.Write(ctx, func(tx *store.Tx) error {
		var k keptUpload
		seen, err := req.Do(tx, &k, func() error {
			t, err := u.Begin(tx, identity.FromContext(ctx))
			if err != nil {
				return err
			}
			if out.Artifact, out.Unchanged, err = u.add(t, known); err != nil {
				return err
			}
			u.CountOutcome(t, noun, outcome(out))
			k.Unchanged = out.Unchanged
			head := proto.CloneOf(out.Artifact)
			head.Labels = nil
			k.Item, err = proto.Marshal(head)
			return err
		})
		if err == nil && seen {
			out.Unchanged = k.Unchanged
			out.Artifact, err = k.version(tx)
		}
		return err
	})
	return work.Answer(err, out)
}

// outcome names the outcome of an upload for metrics.
func outcome(out *pb.UploadArtifactResponse) string {
	switch {
	case out.Unchanged:
		return "unchanged"
	case out.Skipped:
		return "skipped"
	default:
		return "uploaded"
	}
}

// A keptUpload is what the broker keeps of an upload for a repeated request: the version without its labels,
// which its row has.
type keptUpload struct {
	Item      []byte // the message; nil = kept by an earlier version of the broker
	Unchanged bool
	Version   struct{ Revision int64 } `json:",omitzero"` // of an earlier version of the broker
}

// version returns the version of the upload. If it has been removed since, the labels are absent.
func (k *keptUpload) version(q store.Querier) (*pb.ArtifactVersion, error) {
	if k.Item == nil {
		v, found, err := oneVersion(q.Query(selectRevision, k.Version.Revision))
		if err == nil && !found {
			err = fault.Missing("version", "", "the version that this request has added was removed")
		}
		return v, err
	}
	v := &pb.ArtifactVersion{}
	if err := proto.Unmarshal(k.Item, v); err != nil {
		return nil, err
	}
	row, found, err := oneVersion(q.Query(selectRevision, v.Revision))
	if err == nil && found {
		v.Labels = row.Labels
	}
	return v, err
}

// full is the error for a limit.
func full(reason, limit string, most int64, format string, args ...any) *fault.Error {
	return fault.New(fault.Exhausted, reason, format, args...).With("limit", limit).With(limit, strconv.FormatInt(most, 10))
}

// mismatch is the error for a content that is not what the header announces.
func mismatch(reason, field, format string, args ...any) error {
	e := fault.Field(field, format, args...)
	e.Reason = reason
	return e
}
