package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"go.uber.org/zap"
)

// Sizes in the write-ahead log, in bytes.
const (
	walHeader   = 32
	frameHeader = 24
)

// A walSum is the checksum of a log up to a frame: two numbers that depend on all bytes before.
type walSum [2]uint32

// A walFrame is what the header of a frame says.
type walFrame struct {
	salts  uint64 // as in the header of the log, in frames of its newest generation
	commit bool   // the last frame of a commit
	sum    walSum
}

// A logReport says what a log contains.
type logReport struct {
	size    int64 // of the file, in bytes
	frames  int64 // up to the last commit that SQLite reads
	commits int64
	unread  int64  // bytes of the newest generation behind them, without the left-out ones
	leftOut int64  // bytes of committed changes behind a broken frame
	damage  string // why the first unread frame is broken; empty if it is whole, or older
}

// logOf reads the log of a database before SQLite does. SQLite reads the log up to the first frame
// that does not match its checksum, and from these frames up to the last commit. This is right after
// a crash, since the rest was never synced. But if whole commits follow the broken frame, it was
// damaged later, or the disk has written in another order than it confirmed.
//
// The format is in https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
func logOf(path string) (logReport, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return logReport{}, nil
	}
	if err != nil {
		return logReport{}, err
	}
	defer func() { _ = f.Close() }() // it is only read: nothing can be lost
	l, err := readLog(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	return l, nil
}

// readLog reads a log. A frame behind a broken one counts as left out if it continues the checksum
// that the frame before it has.
func readLog(r io.Reader) (l logReport, err error) {
	header := make([]byte, walHeader)
	n, err := io.ReadFull(r, header)
	l.size = int64(n)
	if err != nil {
		if n > 0 && ended(err) == nil {
			l.unread, l.damage = l.size, "its header is cut off"
		}
		return l, ended(err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if header[3]&1 == 1 {
		order = binary.BigEndian
	}
	size := int64(binary.BigEndian.Uint32(header[8:]))
	if size < 512 || size > 65536 {
		size = pageSize // the header is damaged
	}
	salts := binary.BigEndian.Uint64(header[16:])
	sum := walSum{}.add(order, header[:24])
	whole := sum == walSum{binary.BigEndian.Uint32(header[24:]), binary.BigEndian.Uint32(header[28:])}
	anySalts := !whole // then those of the frames are believed
	if !whole {
		l.damage = "its header does not match its checksum"
	}

	var end, last, newest int64 = walHeader, 0, 0 // of the last commit that SQLite reads, the last one behind it, and the newest frames
	frame := make([]byte, frameHeader+size)
	for number := int64(1); ; number++ {
		n, err := io.ReadFull(r, frame)
		l.size += int64(n)
		if err != nil {
			current := n < frameHeader || anySalts || parseFrame(frame).salts == salts
			if n > 0 && whole && current && ended(err) == nil {
				l.damage = fmt.Sprintf("frame %d is cut off", number)
				newest = l.size
			}
			l.leftOut = max(0, last-end)
			if l.leftOut > 0 && l.damage == "" {
				l.damage = fmt.Sprintf("frame %d does not belong to the log", l.frames+1)
			}
			l.unread = max(0, newest-max(end, last))
			return l, ended(err)
		}
		head := parseFrame(frame)
		current := anySalts || head.salts == salts
		matches := current && sum.add(order, frame[:8]).add(order, frame[frameHeader:]) == head.sum
		if whole && current && !matches {
			l.damage = fmt.Sprintf("frame %d does not match its checksum", number)
		}
		whole = whole && matches
		if current {
			newest = l.size
		}
		switch {
		case whole && head.commit:
			end, l.frames = l.size, number
			l.commits++
		case matches && head.commit:
			last = l.size
		}
		sum = head.sum
	}
}

// log writes what a log contains, as far as a start needs it. SQLite removes the log at a clean
// stop, so a log says that the run before did not end that way.
func (l logReport) log(to *zap.Logger) {
	fields := []zap.Field{
		zap.Int64("bytes", l.size), zap.Int64("commits", l.commits), zap.Int64("frames", l.frames),
		zap.Int64("unread_bytes", l.unread),
	}
	switch {
	case l.size == 0:
	case l.leftOut > 0:
		to.Warn("the write-ahead log has commits behind a damaged place, which SQLite leaves out: confirmed changes may be missing",
			append(fields, zap.String("place", l.damage), zap.Int64("left_out_bytes", l.leftOut))...)
	case l.damage != "":
		to.Warn("the write-ahead log ends in a broken frame: a crash has interrupted the last write, or the file was "+
			"cut or damaged later; then confirmed changes may be missing", append(fields, zap.String("place", l.damage))...)
	default:
		to.Info("the write-ahead log of the run before is read", fields...)
	}
}

func parseFrame(b []byte) walFrame {
	return walFrame{
		commit: binary.BigEndian.Uint32(b[4:]) != 0, // the size of the database after it
		salts:  binary.BigEndian.Uint64(b[8:]),
		sum:    walSum{binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])},
	}
}

// add continues a checksum with bytes, whose number is a multiple of 8.
func (s walSum) add(order binary.ByteOrder, b []byte) walSum {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
	return s
}

// ended turns the end of the log, which may be in the middle of a frame, into success.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
