package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"strconv"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Header announces the content of an upload.
type Header struct {
	Name        string
	Size        int64  // bytes, exactly
	SHA256      string // in hexadecimal; empty = unknown
	MediaType   string
	Description string
	Labels      map[string]string
	TaskID      string
	Announce    bool
}

// A Stored is the outcome of an upload.
type Stored struct {
	Version   Version
	Unchanged bool // the newest version already has the content
}

// An Upload is an upload under way. It belongs to one goroutine, which calls Close in the end.
type Upload struct {
	*Repository
	caller identity.Caller
	header Header
	once   func(sum string) (idempotency.Request, error)
	name   string // of the temporary file
	file   *os.File
	sum    hash.Hash
	size   int64

	session  int64
	reserved bool // the session's total includes the size; the repository's mutex guards it
}

// errUnknownContent is why an upload cannot be skipped.
var errUnknownContent = errors.New("the session does not have this content")

// Begin begins an upload. If the header has the hash of a content that the session has, Begin stores
// the version and returns it in place of an upload. request returns the idempotency key for a
// content.
//
// The announced size counts against the limits of the session from here on until Commit or Close. An
// upload without a hash counts even if the session has its content.
//
// Errors: fault.Exhausted for an artifact or session that becomes too large, for too many artifacts
// and for a disk that is nearly full, or would be with this upload; otherwise as directory.Directory.
func (r *Repository) Begin(ctx context.Context, c identity.Caller, h Header, request func(sum string) (idempotency.Request, error)) (*Upload, *Stored, error) {
	if r.Disk != nil {
		if err := r.Disk.CheckUpload(h.Size); err != nil {
			return nil, nil, err
		}
	}
	u := &Upload{Repository: r, caller: c, header: h, once: request, sum: sha256.New()}
	known := false
	err := r.Store.Write(ctx, func(tx *store.Tx) error {
		u.release() // what an earlier run of the function has reserved
		known = false
		s, _, err := r.acting(tx, c)
		if err != nil {
			return err
		}
		if known, err = r.admit(tx, s, h.SHA256, h.Size, r.underWay(s.ID)); err == nil && !known {
			u.reserve(s.ID)
		}
		return err
	})
	if err != nil {
		u.release() // the batch of the function may have been lost after it
		return nil, nil, fmt.Errorf("begin upload: %w", err)
	}
	if known && r.folder.has(h.SHA256, h.Size) {
		stored, err := u.skip(ctx)
		if !errors.Is(err, errUnknownContent) {
			return nil, stored, err
		}
	}
	if u.name, u.file, err = r.folder.create(); err != nil {
		u.release()
		return nil, nil, diskFault("create a file for an upload", err)
	}
	return u, nil, nil
}

// underWay returns the announced bytes of a session's uploads that are under way.
func (r *Repository) underWay(session int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.uploading[session]
}

// reserve counts the size of the upload against the session's total.
func (u *Upload) reserve(session int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.session, u.reserved = session, true
	u.uploading[session] += u.header.Size
}

// release ends the effect of reserve. Further calls do nothing.
func (u *Upload) release() {
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
func (r *Repository) admit(
	q store.Querier, s directory.Session, sum string, size, underWay int64,
) (known bool, err error) {
	if limit := s.Settings.GetArtifactLimit(); limit > 0 && size > limit {
		return false, full("ARTIFACT_TOO_LARGE", "artifact_limit", limit,
			"the content has %d bytes; an artifact of this session has at most %d bytes (artifact_limit)", size, limit)
	}
	if sum != "" {
		var stored, versions int64
		err = q.QueryRow(selectContent, s.ID, sum).Scan(&stored, &versions)
		switch {
		case err == nil && stored != size:
			return false, mismatch("SIZE_MISMATCH", "size", "is %d; the content with this hash has %d bytes", size, stored)
		case err == nil:
			return true, nil
		case !errors.Is(err, store.ErrNoRows):
			return false, err
		}
	}
	u, err := usageOf(q, s.ID)
	limit := s.Settings.GetArtifactTotalLimit()
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

// Write adds the next bytes of the content.
func (u *Upload) Write(chunk []byte) error {
	if u.size+int64(len(chunk)) > u.header.Size {
		return mismatch("SIZE_MISMATCH", "size", "is %d, and the content has more bytes", u.header.Size)
	}
	if u.Disk != nil {
		if err := u.Disk.Written(int64(len(chunk))); err != nil {
			return err
		}
	}
	if _, err := u.file.Write(chunk); err != nil {
		return diskFault("write the content of an upload", err)
	}
	_, _ = u.sum.Write(chunk) // a hash never fails
	u.size += int64(len(chunk))
	u.transferred("upload", int64(len(chunk)))
	return nil
}

// Commit stores the version. Errors: fault.Invalid if the content is not what the header announces;
// otherwise as Begin.
func (u *Upload) Commit(ctx context.Context) (*Stored, error) {
	sum := hex.EncodeToString(u.sum.Sum(nil))
	switch {
	case u.size != u.header.Size:
		return nil, mismatch("SIZE_MISMATCH", "size", "is %d, and the content has %d bytes", u.header.Size, u.size)
	case u.header.SHA256 != "" && u.header.SHA256 != sum:
		return nil, mismatch("HASH_MISMATCH", "sha256", "is %s, and the content has %s", u.header.SHA256, sum)
	}
	u.header.SHA256 = sum
	if err := u.file.Sync(); err != nil {
		return nil, diskFault("sync an upload", err)
	}
	stored, err := u.publish(ctx)
	if err != nil {
		u.Repository.abandon(sum)
		return nil, fmt.Errorf("store an upload: %w", err)
	}
	return stored, nil
}

// publish renames the file, then commits its row.
func (u *Upload) publish(ctx context.Context) (*Stored, error) {
	u.publishing.RLock()
	defer u.publishing.RUnlock()
	if err := u.folder.keep(u.name, u.header.SHA256); err != nil {
		return nil, diskFault("rename an upload", err)
	}
	u.name = ""
	return u.record(ctx, false)
}

// skip stores a version of a content that the session has: errUnknownContent if it lost the content
// meanwhile.
func (u *Upload) skip(ctx context.Context) (*Stored, error) {
	u.publishing.RLock()
	defer u.publishing.RUnlock()
	if !u.folder.has(u.header.SHA256, u.header.Size) {
		return nil, errUnknownContent
	}
	return u.record(ctx, true)
}

// abandon removes the file of a content whose row could not be stored, unless another upload has
// stored one.
func (r *Repository) abandon(sum string) {
	r.mu.Lock()
	r.dropped = append(r.dropped, sum)
	r.mu.Unlock()
	r.collect()
}

// Close ends the upload. Without a Commit before, nothing of it remains.
func (u *Upload) Close() {
	u.release()
	err := u.file.Close()
	if u.name != "" {
		err = errors.Join(err, u.folder.remove(u.name))
	}
	if err != nil {
		u.Logger.Warn("the file of an upload could not be removed; the next start removes it", zap.Error(err))
	}
}

// record stores the version in one transaction. If known is set, the session must have the content.
func (u *Upload) record(ctx context.Context, known bool) (*Stored, error) {
	req, err := u.once(u.header.SHA256)
	if err != nil {
		return nil, err
	}
	var out Stored
	var seen bool
	err = u.Store.Write(ctx, func(tx *store.Tx) (err error) {
		var kept keptUpload
		seen, err = req.Do(tx, &kept, func() error {
			s, a, err := u.acting(tx, u.caller)
			if err != nil {
				return err
			}
			t := uploadTx{Upload: u, tx: tx, session: s, agent: a}
			out, err = t.run(known)
			kept = keptUpload{Stored: out, Session: s.ID}
			kept.Version.Labels = nil
			return err
		})
		if err == nil && seen {
			out, err = kept.stored(tx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	switch {
	case seen:
	case out.Unchanged:
		u.count("unchanged")
	case known:
		u.count("skipped")
	default:
		u.count("uploaded")
	}
	return &out, nil
}

// A keptUpload is the outcome of an upload as the broker keeps it for a repeated request: without the
// labels, which the row of the version has. An outcome that an earlier version of the broker kept has
// them, and no session.
type keptUpload struct {
	Stored
	Session int64 // row id
}

// stored returns the outcome. If the version has been removed since, the labels are absent.
func (k *keptUpload) stored(q store.Querier) (Stored, error) {
	out := k.Stored
	if k.Session == 0 {
		return out, nil
	}
	v, found, err := oneVersion(q.Query(selectVersion, k.Session, out.Version.Name, out.Version.Number))
	if err == nil && found && v.Revision == out.Version.Revision {
		out.Version.Labels = v.Labels
	}
	return out, err
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
