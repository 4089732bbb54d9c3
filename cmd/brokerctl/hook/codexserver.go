package hook

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"
)

const (
	codexHello = 5 * time.Second // that Codex's server has to answer the first calls
	mostFrame  = 32 << 20        // bytes of one of its messages
)

// A codexServer is a connection to the server of Codex, which runs the sessions of its terminals: JSON-RPC in
// WebSocket messages on a socket. It is for one goroutine.
type codexServer struct {
	conn  net.Conn
	in    *bufio.Reader
	calls int
	notes []codexNote // that came before the answer to a call
}

// A codexNote is a notification, or an answer.
type codexNote struct {
	ID     *int            `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// dialCodex connects with the server whose socket is below the home folder of Codex. The caller must close it.
func dialCodex(ctx context.Context, home string) (*codexServer, error) {
	// The path in the home folder may be too long for a socket, and is then a link.
	socket, err := filepath.EvalSymlinks(filepath.Join(home, "app-server-control", "app-server-control.sock"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, codexHello)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	s := &codexServer{conn: conn, in: bufio.NewReader(conn)}
	if err := s.open(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("open Codex's server: %w", err)
	}
	return s, nil
}

func (s *codexServer) close() { _ = s.conn.Close() }

// open opens the WebSocket and introduces this client.
func (s *codexServer) open(ctx context.Context) error {
	err := s.bounded(ctx, func() error {
		key := make([]byte, 16)
		_, _ = rand.Read(key) // never fails
		_, err := fmt.Fprintf(s.conn, "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n", base64.StdEncoding.EncodeToString(key))
		if err != nil {
			return err
		}
		answer, err := http.ReadResponse(s.in, nil)
		if err != nil {
			return err
		}
		_ = answer.Body.Close() // it has none
		if answer.StatusCode != http.StatusSwitchingProtocols {
			return errors.New(answer.Status)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.call(ctx, "initialize", map[string]any{
		"clientInfo":   map[string]any{"name": "brokerd", "title": "brokerd", "version": "1"},
		"capabilities": map[string]any{"experimentalApi": true},
	}, nil); err != nil {
		return err
	}
	return s.bounded(ctx, func() error { return s.write(map[string]any{"jsonrpc": "2.0", "method": "initialized"}) })
}

// call makes a call and decodes its result, unless result is nil. Notifications meanwhile are kept for await.
func (s *codexServer) call(ctx context.Context, method string, params, result any) error {
	s.calls++
	id := s.calls
	return s.bounded(ctx, func() error {
		if err := s.write(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params}); err != nil {
			return err
		}
		for {
			n, err := s.read()
			switch {
			case err != nil:
				return err
			case n.Method != "":
				s.notes = append(s.notes, n)
			case n.ID == nil || *n.ID != id:
			case n.Error != nil:
				return fmt.Errorf("%s: %s (%d)", method, n.Error.Message, n.Error.Code)
			case result == nil:
				return nil
			default:
				return json.Unmarshal(n.Result, result)
			}
		}
	})
}

// await returns as soon as a notification satisfies holds. It drops the others.
func (s *codexServer) await(ctx context.Context, holds func(n *codexNote) bool) error {
	return s.bounded(ctx, func() error {
		for {
			for len(s.notes) > 0 {
				n := s.notes[0]
				if s.notes = s.notes[1:]; holds(&n) {
					return nil
				}
			}
			n, err := s.read()
			if err != nil {
				return err
			}
			if n.Method != "" {
				s.notes = append(s.notes, n)
			}
		}
	})
}

// bounded ends the reads and writes of do when ctx ends. The connection is of no use then.
func (s *codexServer) bounded(ctx context.Context, do func() error) error {
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	err := do()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Operations of WebSocket frames.
const (
	wsContinuation = 0
	wsText         = 1
	wsClose        = 8
	wsPing         = 9
	wsPong         = 10
)

func (s *codexServer) write(message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return s.writeFrame(wsText, text)
}

// writeFrame writes one frame, masked as a client must.
func (s *codexServer) writeFrame(operation byte, data []byte) error {
	frame := []byte{0x80 | operation}
	switch n := len(data); {
	case n < 126:
		frame = append(frame, 0x80|byte(n))
	case n <= 0xffff:
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(n))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 0x80|127), uint64(n))
	}
	mask := make([]byte, 4)
	_, _ = rand.Read(mask) // never fails
	frame = append(frame, mask...)
	for i, b := range data {
		frame = append(frame, b^mask[i%4])
	}
	_, err := s.conn.Write(frame)
	return err
}

// read returns the next message, whose frames it joins.
func (s *codexServer) read() (n codexNote, err error) {
	var text []byte
	for {
		operation, last, data, err := s.readFrame()
		if err != nil {
			return n, err
		}
		switch operation {
		case wsPing:
			if err := s.writeFrame(wsPong, data); err != nil {
				return n, err
			}
		case wsClose:
			return n, io.EOF
		case wsText, wsContinuation:
			if text = append(text, data...); len(text) > mostFrame {
				return n, errors.New("a message of Codex's server is too long")
			}
			if last {
				return n, json.Unmarshal(text, &n)
			}
		}
	}
}

func (s *codexServer) readFrame() (operation byte, last bool, data []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return 0, false, nil, err
	}
	size := uint64(head[1] & 0x7f)
	if more := map[uint64]int{126: 2, 127: 8}[size]; more > 0 {
		var long [8]byte
		if _, err := io.ReadFull(s.in, long[8-more:]); err != nil {
			return 0, false, nil, err
		}
		size = binary.BigEndian.Uint64(long[:])
	}
	if size > mostFrame {
		return 0, false, nil, errors.New("a message of Codex's server is too long")
	}
	data = make([]byte, size)
	_, err = io.ReadFull(s.in, data)
	return head[0] & 0x0f, head[0]&0x80 != 0, data, err
}
