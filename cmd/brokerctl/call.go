package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/jsonform"
)

func newCallCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:   "call METHOD [JSON|@FILE|-]",
		Short: "Make any call of the API, with JSON",
		Long: `Make one call of the API, except streams. The request is a JSON object with the
fields of the API and values as -o json prints them. The answer is printed as JSON.
brokerctl adds no request id and reads no further pages.`,
		Example: `  brokerctl call AdminService/GetStatus
  brokerctl call MessageService/ListMailboxes '{"order":"waiting"}'
  echo '{"box":"sent"}' | brokerctl call MessageService/ListMessages -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return problem.Usagef("call needs METHOD, such as AdminService/GetStatus, and at most one request")
			}
			_, err := unaryMethod(args[0])
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return unaryMethods(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			method, err := unaryMethod(args[0])
			if err != nil {
				return err
			}
			request, answer := emptyMessage(method.Input()), emptyMessage(method.Output())
			if len(args) == 2 {
				content, err := c.Text(cmd, "JSON", args[1])
				if err != nil {
					return err
				}
				if err := jsonform.Decode([]byte(content), request); err != nil {
					return problem.Usagef("the request of %s: %v", method.Name(), err)
				}
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
			if err := broker.Conn().Invoke(cmd.Context(), name, request, answer); err != nil {
				return err
			}
			var b bytes.Buffer
			if err := jsonform.Append(&b, answer); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), b.String())
			return err
		},
	}
}

// apiPackage is the package of the API's services.
const apiPackage protoreflect.FullName = "brokerd.v1"

// unaryMethod returns the method that a SERVICE/METHOD names.
func unaryMethod(name string) (protoreflect.MethodDescriptor, error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(name, string(apiPackage)+"."), "/")
	full := apiPackage.Append(protoreflect.Name(service)).Append(protoreflect.Name(method))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(full)
	m, ok := found.(protoreflect.MethodDescriptor)
	switch {
	case err != nil || !ok:
		return nil, problem.Usagef("there is no method %q; docs/api.md lists them, and the shell's completion too", name)
	case m.IsStreamingClient() || m.IsStreamingServer():
		return nil, problem.Usagef("%s is a stream, which call cannot make; POST /v1/call/%s/%s over HTTP can",
			m.Name(), m.Parent().Name(), m.Name())
	}
	return m, nil
}

// unaryMethods returns the methods that call can make, in order.
func unaryMethods() []string {
	var all []string
	protoregistry.GlobalFiles.RangeFilesByPackage(apiPackage, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); !m.IsStreamingClient() && !m.IsStreamingServer() {
					all = append(all, string(m.Parent().Name())+"/"+string(m.Name()))
				}
			}
		}
		return true
	})
	slices.Sort(all)
	return all
}

// emptyMessage returns an empty message of the API.
func emptyMessage(d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	command.Must(err)
	return kind.New().Interface()
}
