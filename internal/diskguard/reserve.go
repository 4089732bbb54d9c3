package diskguard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// ReserveFile is the file of a data folder that keeps free space for acknowledgements and deletions.
	ReserveFile = "reserve"
	// reserveSize is its size in bytes, and one in reserveShare the largest share of its file system.
	reserveSize  = 4 << 20
	reserveShare = 16
)

// A Reserve is a file that a broker removes when its disk is full. The broker then has free space to
// start, and to write acknowledgements and deletions, while a Gauge refuses to send. Its methods may
// be called concurrently.
type Reserve struct {
	path string
	zap  *zap.Logger

	freed atomic.Bool // since the last look of a Gauge
	mu    sync.Mutex  // held to change the file
}

// NewReserve returns the reserve of a data folder. It changes nothing.
func NewReserve(dir string, logger *zap.Logger) *Reserve {
	return &Reserve{path: filepath.Join(dir, ReserveFile), zap: logger}
}

// Free removes the file, if there is one.
func (r *Reserve) Free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch err := os.Remove(r.path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		r.zap.Warn("cannot remove the reserve", zap.String("file", r.path), zap.Error(err))
	default:
		r.freed.Store(true)
		r.zap.Warn("the disk is full: the reserve is free for acknowledgements and deletions, and the broker refuses to send",
			zap.String("file", r.path))
	}
}

// missing returns how many bytes the file lacks, and these as a share of the file system.
func (r *Reserve) missing() (bytes int64, share float64) {
	used, free, err := bytesOf(filepath.Dir(r.path))
	if err != nil || used+free == 0 {
		return 0, 0
	}
	if info, err := os.Stat(r.path); err == nil && info.Size() > 0 {
		return 0, 0
	}
	bytes = min(reserveSize, int64(used+free)/reserveShare)
	return bytes, float64(bytes) / (used + free)
}

// keep makes the file. It reports false if the disk has no space for it.
func (r *Reserve) keep(bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		if err = allocate(f, bytes); err != nil {
			err = errors.Join(err, os.Remove(r.path))
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.zap.Warn("cannot make the reserve", zap.String("file", r.path), zap.Error(err))
	}
	return !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT)
}

// allocate gives a file as many blocks as it needs for its size. A file system that cannot do that
// gets zeros instead.
func allocate(f *os.File, bytes int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
		return err
	}
	_, err = f.WriteAt(make([]byte, bytes), 0)
	return err
}
