package store

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"time"
	"unsafe"
)

const (
	// largeArgument is the size from which a text or blob is not copied. Below it, a copy costs less than to pin the
	// original, without which C must not be given its address.
	largeArgument = 16 << 10
	// keptArguments is the most memory that is kept for the arguments of the next batch.
	keptArguments = 1 << 20
)

// A largeArg is a text or blob that is not among the packed arguments.
type largeArg struct {
	at    int // where its address is to be
	bytes []byte
}

// pack encodes an argument of a statement, as native.h says. What is not bound is NULL.
func (d *Deferred) pack(ordinal int, arg any) error {
	switch v := arg.(type) {
	case nil:
	case string:
		d.packBytes(packedText, ordinal, unsafe.Slice(unsafe.StringData(v), len(v)))
	case []byte:
		if v != nil {
			d.packBytes(packedBlob, ordinal, v)
		}
	case float64:
		d.packNumber(packedReal, ordinal, math.Float64bits(v))
	default:
		n, null, err := toInteger(arg)
		if err != nil {
			return err
		}
		if !null {
			d.packNumber(packedInteger, ordinal, uint64(n))
		}
	}
	return nil
}

func (d *Deferred) packNumber(kind, ordinal int, n uint64) {
	d.packHead(kind, ordinal, 0)
	d.packed = binary.NativeEndian.AppendUint64(d.packed, n)
}

func (d *Deferred) packBytes(kind, ordinal int, bytes []byte) {
	if len(bytes) < largeArgument {
		d.packHead(kind, ordinal, len(bytes))
		d.packed = append(d.packed, bytes...)
		return
	}
	d.packHead(kind+packedLarge, ordinal, len(bytes))
	d.large = append(d.large, largeArg{len(d.packed), bytes})
	d.packed = binary.NativeEndian.AppendUint64(d.packed, 0)
}

func (d *Deferred) packHead(kind, ordinal, size int) {
	d.packed = binary.NativeEndian.AppendUint64(d.packed, uint64(kind)|uint64(ordinal)<<8|uint64(size)<<24)
}

// pin fills in the addresses of large arguments, which stay where they are until the pinner says otherwise.
func (d *Deferred) pin(pinner *runtime.Pinner, large []largeArg) {
	for _, l := range large {
		data := unsafe.SliceData(l.bytes)
		pinner.Pin(data)
		binary.NativeEndian.PutUint64(d.packed[l.at:], uint64(uintptr(unsafe.Pointer(data))))
	}
}

// unpack returns the packed arguments of a statement as the driver takes them.
func (d *Deferred) unpack(to []driver.NamedValue, s *waitingStatement) []driver.NamedValue {
	large := d.large[s.large:]
	for at := s.from; at < s.to; {
		head := binary.NativeEndian.Uint64(d.packed[at:])
		kind, size := int(head&0xff), int(head>>24)
		at += 8
		bytes := d.packed[at:]
		switch kind {
		case packedText, packedBlob:
			bytes = bytes[:size]
			at += size
		case packedText + packedLarge, packedBlob + packedLarge:
			kind -= packedLarge
			bytes, large = large[0].bytes, large[1:]
			at += 8
		default:
			at += 8
		}
		var value driver.Value
		switch kind {
		case packedInteger:
			value = int64(binary.NativeEndian.Uint64(bytes))
		case packedReal:
			value = math.Float64frombits(binary.NativeEndian.Uint64(bytes))
		case packedText:
			value = string(bytes)
		case packedBlob:
			value = bytes
		}
		to = append(to, driver.NamedValue{Ordinal: int(head >> 8 & 0xffff), Value: value})
	}
	return to
}

// toInteger returns the INTEGER for an argument: an integer, a boolean, a time or a duration. The zero time is NULL.
func toInteger(arg any) (n int64, null bool, err error) {
	switch v := arg.(type) {
	case int64:
		return v, false, nil
	case int:
		return int64(v), false, nil
	case int32:
		return int64(v), false, nil
	case uint32:
		return int64(v), false, nil
	case uint64:
		return int64(v), false, nil
	case bool:
		if v {
			return 1, false, nil
		}
		return 0, false, nil
	case time.Time:
		if v.IsZero() {
			return 0, true, nil
		}
		return v.UnixNano(), false, nil
	case time.Duration:
		return int64(v), false, nil
	}
	return 0, false, fmt.Errorf("cannot store a %s", reflect.TypeOf(arg)) // unlike %T, this leaves the argument on the stack
}
