package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"brokerd/internal/prompt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// MostLine is how many bytes a line of an MCP client has at most. A message with the largest body and
// payload is shorter.
const MostLine = 16 << 20

// messageLines passes on the lines of an MCP client that are JSON-RPC messages. It answers every other line
// with an error, where the SDK would end the session. It passes on the messages of a batch one by one, and
// each has its own answer. It is for one goroutine; answers share the output with the session, so each is one
// call of Write.
type messageLines struct {
	in    *bufio.Reader
	out   io.Writer
	ready bytes.Buffer // of messages that the session has not read yet
}

func newMessageLines(in io.Reader, out io.Writer) *messageLines {
	return &messageLines{in: bufio.NewReader(in), out: out}
}

// Read implements io.Reader.
func (l *messageLines) Read(p []byte) (int, error) {
	for l.ready.Len() == 0 {
		line, ended, err := l.line()
		if err == nil {
			err = l.take(line)
		}
		if err != nil {
			return 0, err
		}
		if ended && l.ready.Len() == 0 {
			return 0, io.EOF
		}
	}
	return l.ready.Read(p)
}

// errLongLine is the error of a line that has more than mcpMostLine bytes.
var errLongLine = fmt.Errorf("a line has at most %d bytes", MostLine)

// line reads one line. It answers and skips longer ones than mcpMostLine. It reports whether the input has
// ended behind the line.
func (l *messageLines) line() (line []byte, ended bool, err error) {
	long := false
	for {
		piece, err := l.in.ReadSlice('\n')
		if long = long || len(line)+len(piece) > MostLine; long {
			line = nil
		} else {
			line = append(line, piece...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, true, err
		case long:
			return nil, err != nil, l.refuse(jsonrpc.CodeParseError, errLongLine)
		}
		return line, err != nil, nil
	}
}

// take adds the messages of a line to those that are ready, or answers with an error.
func (l *messageLines) take(line []byte) error {
	line = bytes.TrimSpace(line)
	switch {
	case len(line) == 0:
		return nil
	case !json.Valid(line):
		return l.refuse(jsonrpc.CodeParseError, errors.New("a line must be one JSON-RPC message"))
	case line[0] != '[':
		return l.message(line)
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(line, &batch); err != nil || len(batch) == 0 {
		return l.refuse(jsonrpc.CodeInvalidRequest, errors.New("the batch is empty"))
	}
	for _, message := range batch {
		if err := l.message(message); err != nil {
			return err
		}
	}
	return nil
}

// message adds a message to those that are ready, or answers with an error. It skips a response that is
// wrong: JSON-RPC has no answer to a response.
func (l *messageLines) message(message []byte) error {
	var parts map[string]json.RawMessage
	isObject := json.Unmarshal(message, &parts) == nil && parts != nil
	_, err := jsonrpc.DecodeMessage(message)
	switch {
	case isObject && parts["method"] == nil && (parts["result"] != nil || parts["error"] != nil):
		if err != nil {
			return nil
		}
	case err != nil:
		return l.refuse(jsonrpc.CodeInvalidRequest, err)
	case parts["method"] == nil:
		return l.refuse(jsonrpc.CodeInvalidRequest, errors.New("the message has no method"))
	}
	l.ready.Write(message)
	l.ready.WriteByte('\n')
	return nil
}

// refuse answers with an error and the id null, because the id of what is refused is not known for sure.
func (l *messageLines) refuse(code int, why error) error {
	name := prompt.Either(code == jsonrpc.CodeParseError, "Parse error", "Invalid Request")
	answer, err := json.Marshal(struct {
		Version string        `json:"jsonrpc"`
		ID      any           `json:"id"`
		Error   jsonrpc.Error `json:"error"`
	}{"2.0", nil, jsonrpc.Error{Code: int64(code), Message: name + ": " + why.Error()}})
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(answer, '\n'))
	return err
}
