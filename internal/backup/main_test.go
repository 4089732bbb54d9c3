package backup_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient returns a context that ends a test which waits in vain.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*apptest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	apptest.NoError(t, err)
}

// begin starts a backup.
func begin(t *testing.T, ctx context.Context, b *apptest.Broker) grpc.ServerStreamingClient[pb.BackupDatabaseResponse] {
	t.Helper()
	stream, err := b.Root().BackupDatabase(ctx, &pb.BackupDatabaseRequest{})
	must(t, err)
	return stream
}

// firstChunk reads a backup up to its first chunk.
func firstChunk(t *testing.T, stream grpc.ServerStreamingClient[pb.BackupDatabaseResponse]) []byte {
	t.Helper()
	for {
		in, err := stream.Recv()
		must(t, err)
		if chunk := in.GetChunk(); chunk != nil {
			return chunk
		}
	}
}

// rest reads the chunks that follow, and the description at the end.
func rest(t *testing.T, stream grpc.ServerStreamingClient[pb.BackupDatabaseResponse], file []byte) ([]byte, *pb.Backup) {
	t.Helper()
	var made *pb.Backup
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return file, made
		}
		must(t, err)
		file = append(file, in.GetChunk()...)
		if b := in.GetBackup(); b != nil {
			made = b
		}
	}
}

// backUp makes a backup.
func backUp(t *testing.T, b *apptest.Broker) ([]byte, *pb.Backup) {
	t.Helper()
	stream := begin(t, patient(t), b)
	file, made := rest(t, stream, firstChunk(t, stream))
	sum := sha256.Sum256(file)
	if made == nil || made.GetSize() != int64(len(file)) || made.GetSha256() != hex.EncodeToString(sum[:]) {
		t.Fatalf("the file has %d bytes and the hash %x: %v", len(file), sum, made)
	}
	return file, made
}

// newFolder returns the path of a folder that does not exist; the path is short, since a socket lies in it.
func newFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "data")
}

// restore restores a backup into a new folder.
func restore(t *testing.T, file []byte) (string, app.Restored) {
	t.Helper()
	dir := newFolder(t)
	restored, err := app.Restore(patient(t), app.Config{Dir: dir}, bytes.NewReader(file))
	must(t, err)
	return dir, restored
}

// run starts a broker on a folder.
func run(t *testing.T, dir string) *apptest.Broker {
	t.Helper()
	return apptest.Start(t, apptest.With(func(c *app.Config) { c.Dir = dir }))
}

// partials returns the temporary files of backups in a data folder.
func partials(t *testing.T, dir string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*.partial"))
	must(t, err)
	return left
}

// An entry is one file of a backup.
type entry struct {
	name string
	text []byte
}

// entries returns the files of a backup.
func entries(t *testing.T, file []byte) (all []entry) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(file)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		text, err := io.ReadAll(r)
		must(t, err)
		all = append(all, entry{h.Name, text})
	}
}

// pack makes a backup of files, with the right hash at its end.
func pack(t *testing.T, all []entry) []byte {
	t.Helper()
	var file bytes.Buffer
	w := tar.NewWriter(&file)
	add := func(e entry) {
		must(t, w.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.text)), Mode: 0o600, Format: tar.FormatGNU}))
		_, err := w.Write(e.text)
		must(t, err)
		must(t, w.Flush())
	}
	for _, e := range all {
		add(e)
	}
	sum := sha256.Sum256(file.Bytes())
	add(entry{"SHA256", []byte(hex.EncodeToString(sum[:]) + "\n")})
	must(t, w.Close())
	return file.Bytes()
}

// dial connects an operator to a daemon.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
