package call

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/jsonform"
)

// NewCommand returns the command brokerctl call.
func NewCommand(c *command.Caller) *cobra.Command {
	r := &request{c: c}
	cmd := &cobra.Command{
		Use:   "call METHOD [JSON|@FILE|-] [--FIELD VALUE...]",
		Short: "Make any call of the API",
		Long: `Make one call of the API. The request is an object as -o json prints them, or
flags: METHOD --help shows its fields. A field named as a global flag is
--request.NAME. Streams: an object a line, requests on standard input.`,
		Example: `  brokerctl call AdminService/GetStatus
  brokerctl call MessageService/ListMailboxes --order waiting`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return problem.Usagef("call needs METHOD, such as AdminService/GetStatus, and at most one request")
			}
			_, err := method(args[0])
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return Methods(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.BindLater(cmd, func() { r.bind(cmd) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m, err := method(args[0])
		if err != nil {
			return err
		}
		if m.IsStreamingClient() {
			if len(args) > 1 || len(r.given(cmd)) > 0 {
				return problem.Usagef("%s reads its requests from standard input, one JSON object a line", m.Name())
			}
			return r.stream(cmd, m, lines(cmd.InOrStdin(), m))
		}
		message, err := r.read(cmd, m, args[1:])
		if err != nil {
			return err
		}
		if m.IsStreamingServer() {
			return r.stream(cmd, m, one(message))
		}
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		answer := emptyMessage(m.Output())
		if err := broker.Conn().Invoke(cmd.Context(), path(m), message, answer); err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), answer)
	}
	return cmd
}

// A request is that of the call, from arguments and flags.
type request struct {
	c     *command.Caller
	flags map[string]string // flag → field
}

// read returns the message that the argument and the flags say.
func (r *request) read(cmd *cobra.Command, m protoreflect.MethodDescriptor, args []string) (proto.Message, error) {
	message := emptyMessage(m.Input())
	if len(args) > 0 {
		content, err := r.c.Text(cmd, "JSON", args[0])
		if err != nil {
			return nil, err
		}
		if err := jsonform.Decode([]byte(content), message); err != nil {
			return nil, problem.Usagef("the request of %s: %v", m.Name(), err)
		}
	}
	for _, flag := range r.given(cmd) {
		if err := r.set(message, flag); err != nil {
			return nil, problem.Usagef("%s: --%s: %v", m.Name(), flag.name, err)
		}
	}
	return message, nil
}

// set sets the field of a flag.
func (r *request) set(message proto.Message, f flag) error {
	if f.kind != "map" {
		return jsonform.Set(message, r.flags[f.name], f.texts)
	}
	for _, pair := range f.texts {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		if err := jsonform.Set(message, r.flags[f.name]+"."+key, []string{value}); err != nil {
			return err
		}
	}
	return nil
}

// stream makes a call that is a stream. next returns the next request, and io.EOF at the end.
func (r *request) stream(
	cmd *cobra.Command, m protoreflect.MethodDescriptor, next func() (proto.Message, error),
) error {
	broker, err := r.c.Connect(cmd.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	kind := &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()}
	s, err := broker.Conn().NewStream(ctx, kind, path(m))
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		wrong := send(s, next)
		if sent <- wrong; wrong != nil {
			cancel()
		}
	}()
	for {
		answer := emptyMessage(m.Output())
		err := s.RecvMsg(answer)
		if err == nil {
			err = write(cmd.OutOrStdout(), answer)
		}
		if err == nil && m.IsStreamingServer() {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		select {
		case wrong := <-sent: // a line that is no request ends the call
			return cmp.Or(wrong, err)
		default:
			return err
		}
	}
}

// send sends the requests. An error says what is wrong with one of them, and ends the call.
func send(s grpc.ClientStream, next func() (proto.Message, error)) error {
	for {
		message, err := next()
		if errors.Is(err, io.EOF) {
			return s.CloseSend()
		}
		if err != nil {
			return err
		}
		if s.SendMsg(message) != nil {
			return nil // the answer says why
		}
	}
}

// one returns a source of one request.
func one(message proto.Message) func() (proto.Message, error) {
	return func() (proto.Message, error) {
		if message == nil {
			return nil, io.EOF
		}
		only := message
		message = nil
		return only, nil
	}
}

// lines returns a source of the requests that are lines of JSON. It leaves out empty lines.
func lines(in io.Reader, m protoreflect.MethodDescriptor) func() (proto.Message, error) {
	text, n := bufio.NewReader(in), 0
	return func() (proto.Message, error) {
		for {
			line, err := text.ReadBytes('\n')
			n++
			if line = bytes.TrimSpace(line); len(line) > 0 {
				message := emptyMessage(m.Input())
				if err := jsonform.Decode(line, message); err != nil {
					return nil, problem.Usagef("line %d, a request of %s: %v", n, m.Name(), err)
				}
				return message, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// write prints an answer as one line of JSON.
func write(w io.Writer, answer proto.Message) error {
	var b bytes.Buffer
	if err := jsonform.Append(&b, answer); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// api is the package of the API's services.
const api protoreflect.FullName = "brokerd.v1"

// method returns the method that a SERVICE/METHOD names.
func method(name string) (protoreflect.MethodDescriptor, error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(name, string(api)+"."), "/")
	full := api.Append(protoreflect.Name(service)).Append(protoreflect.Name(method))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(full)
	if m, ok := found.(protoreflect.MethodDescriptor); ok && err == nil {
		return m, nil
	}
	return nil, problem.Usagef("there is no method %q; docs/api.md lists them, and the shell's completion too", name)
}

// Methods returns the methods of the API, in order.
func Methods() []string {
	var all []string
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			of := file.Services().Get(i).Methods()
			for j := range of.Len() {
				all = append(all, string(of.Get(j).Parent().Name())+"/"+string(of.Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(all)
	return all
}

// path is the name of a method on the wire.
func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// emptyMessage returns an empty message of the API.
func emptyMessage(d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	command.Must(err)
	return kind.New().Interface()
}
