package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// uploadChunk is how many bytes of a content one frame of an upload has.
const uploadChunk = 64 << 10

// ErrDamaged says that a downloaded content does not have the hash of its version.
var ErrDamaged = errors.New("the content does not have the hash of its version")

// ParseArtifact splits a reference such as api-spec.yaml@3 into a name and a version. The version is
// 0, the newest, if the reference has none.
func ParseArtifact(reference string) (name string, version int64) {
	name, number, found := cutLast(reference, "@")
	if n, err := strconv.ParseUint(number, 10, 63); found && err == nil && n > 0 {
		return name, int64(n)
	}
	return reference, 0
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// ArtifactReference returns the reference to a version, such as api-spec.yaml@3.
func ArtifactReference(v *pb.ArtifactVersion) string {
	return v.GetName() + "@" + strconv.FormatInt(v.GetVersion(), 10)
}

// UploadArtifact reads a content twice: for its size and hash, and to send it. It skips the second
// time if the broker has the content already. The header needs only a name. progress, if set, is
// called with the number of bytes sent so far.
//
// If the connection breaks, UploadArtifact repeats the upload from its start when the broker answers
// again, until ctx ends, and never adds two versions.
func (c *Client) UploadArtifact(ctx context.Context, header *pb.ArtifactHeader, content io.ReadSeeker, progress func(sent int64)) (*pb.UploadArtifactResponse, error) {
	h := proto.CloneOf(header)
	sum := sha256.New()
	size, err := readAll(content, sum)
	if err != nil {
		return nil, fmt.Errorf("read the content of %s: %w", h.GetName(), err)
	}
	h.Size, h.Sha256 = size, hex.EncodeToString(sum.Sum(nil))
	if h.RequestId == "" {
		h.RequestId = requestID()
	}
	for r := (retry{link: c.link}); ; {
		out, err := c.upload(ctx, h, content, progress)
		if !interrupted(err) || !r.wait(ctx, err) {
			return out, err
		}
	}
}

// upload makes one call.
func (c *Client) upload(ctx context.Context, h *pb.ArtifactHeader, content io.ReadSeeker, progress func(int64)) (*pb.UploadArtifactResponse, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream after an error of the content
	defer cancel()
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the content of %s: %w", h.GetName(), err)
	}
	stream, err := c.Artifacts().UploadArtifact(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}})
	buffer := make([]byte, uploadChunk)
	for sent := int64(0); err == nil; {
		n, readErr := io.ReadFull(content, buffer)
		if n > 0 {
			// gRPC has encoded the frame when Send returns.
			err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: buffer[:n]}})
			if sent += int64(n); err == nil && progress != nil {
				progress(sent)
			}
		}
		if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
			break
		}
		if readErr != nil {
			return nil, fmt.Errorf("read the content of %s: %w", h.GetName(), readErr)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) { // at io.EOF the broker has ended the stream, with an answer or an error
		return nil, err
	}
	return stream.CloseAndRecv()
}

// readAll reads a content from its start into w and returns its size.
func readAll(content io.ReadSeeker, w io.Writer) (int64, error) {
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, content)
}

// DownloadArtifact writes the content that a request names to w and returns its version. It compares
// the hash of a whole content, and returns ErrDamaged if it is another one. progress, if set, is
// called with the number of bytes written so far.
//
// If the connection breaks, DownloadArtifact continues at the first missing byte of the same version
// when the broker answers again, until ctx ends.
func (c *Client) DownloadArtifact(ctx context.Context, request *pb.DownloadArtifactRequest, w io.Writer, progress func(version *pb.ArtifactVersion, written int64)) (*pb.ArtifactVersion, error) {
	d := &download{client: c, request: proto.CloneOf(request), asked: request.GetLength(), w: w, progress: progress, sum: sha256.New()}
	for r := (retry{link: c.link}); ; {
		err := d.read(ctx, r.worked)
		switch {
		case errors.Is(err, io.EOF):
			return d.version, d.check(request)
		case !interrupted(err) || !r.wait(ctx, err):
			return d.version, err
		}
	}
}

// A download is the position of one DownloadArtifact.
type download struct {
	client   *Client
	request  *pb.DownloadArtifactRequest // of the rest
	asked    int64                       // bytes at most; 0 = all
	w        io.Writer
	progress func(*pb.ArtifactVersion, int64)

	version *pb.ArtifactVersion // nil before the first answer
	written int64
	sum     hash.Hash
}

// read makes one call: io.EOF when the download is complete.
func (d *download) read(ctx context.Context, worked func()) error {
	if d.asked > 0 {
		if d.request.Length = d.asked - d.written; d.request.Length == 0 {
			return io.EOF
		}
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream after an error of w
	defer cancel()
	stream, err := d.client.Artifacts().DownloadArtifact(ctx, d.request, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		worked()
		if v := frame.GetArtifact(); v != nil {
			d.version = v
			d.request.Name, d.request.Version, d.request.Sha256 = v.GetName(), v.GetVersion(), ""
			continue
		}
		if err := d.write(frame.GetChunk()); err != nil {
			return err
		}
	}
}

func (d *download) write(chunk []byte) error {
	n, err := d.w.Write(chunk)
	d.written += int64(n)
	d.request.Offset += int64(n)
	if err != nil {
		return fmt.Errorf("write the content of %s: %w", d.version.GetName(), err)
	}
	_, _ = d.sum.Write(chunk) // a hash never fails
	if d.progress != nil {
		d.progress(d.version, d.written)
	}
	return nil
}

// check compares the hash of a whole content.
func (d *download) check(asked *pb.DownloadArtifactRequest) error {
	whole := asked.GetOffset() == 0 && d.written == d.version.GetSize()
	if whole && hex.EncodeToString(d.sum.Sum(nil)) != d.version.GetSha256() {
		return ErrDamaged
	}
	return nil
}

// interrupted reports whether the connection broke, or the broker stops: the same call can succeed
// later.
func interrupted(err error) bool {
	return status.Code(err) == codes.Unavailable && Reason(err) != "DISK_FULL"
}
