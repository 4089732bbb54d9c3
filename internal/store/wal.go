package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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

// logLeftOut returns how many bytes of committed changes SQLite leaves out when it opens a database
// with this log. SQLite reads the log up to the first frame that does not match its checksum, and
// from these frames up to the last commit. This is right after a crash, since the rest was never
// synced. But if whole commits follow the broken frame, it was damaged later, or the disk has
// written in another order than it confirmed.
//
// The format is in https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
func logLeftOut(path string) (int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it is only read: nothing can be lost
	n, err := leftOut(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// leftOut reads a log. A frame behind a broken one counts if it continues the checksum that the
// frame before it has.
func leftOut(r io.Reader) (int64, error) {
	header := make([]byte, walHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, ended(err)
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

	var read, end, last int64 = walHeader, walHeader, 0 // end of what SQLite reads, and of the last commit behind it
	frame := make([]byte, frameHeader+size)
	for {
		if _, err := io.ReadFull(r, frame); err != nil {
			return max(0, last-end), ended(err)
		}
		read += int64(len(frame))
		head := parseFrame(frame)
		matches := sum.add(order, frame[:8]).add(order, frame[frameHeader:]) == head.sum && (anySalts || head.salts == salts)
		whole = whole && matches
		switch {
		case whole && head.commit:
			end = read
		case matches && head.commit:
			last = read
		}
		sum = head.sum
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
