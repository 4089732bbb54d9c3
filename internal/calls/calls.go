// Package calls has the calls of the API that the broker and its programs propose: in findings, with pieces of work,
// and as the next step in a text. A call is a request. Each surface writes it as its reader makes it: brokerctl as a
// command line, the MCP server as a call of a tool, the dashboard as a button.
package calls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "brokerd/gen/brokerd/v1"
)

// A Call is a call of the API that a reader may make.
type Call struct {
	Request proto.Message // of the one method that takes it
	Agent   string        // in whose name the call is made; empty = the caller's
	Missing []string      // the fields of the request that the caller must add
	Program []string      // nil, or the words of the program to start, which makes the call
}

// Do returns the call with a request, to which the caller must add the missing fields.
func Do(request proto.Message, missing ...string) Call {
	return Call{Request: request, Missing: missing}
}

// As returns the call in the name of an agent.
func (c Call) As(agent string) Call {
	c.Agent = agent
	return c
}

// Method returns the name of the method, such as RetryTask.
func (c Call) Method() string { return string(c.method().Name()) }

// Name returns the names of the service and the method, such as TaskService/RetryTask.
func (c Call) Name() string { return string(c.method().Parent().Name()) + "/" + c.Method() }

// Path returns the full name of the method, such as /brokerd.v1.TaskService/RetryTask.
func (c Call) Path() string { return "/" + string(c.method().Parent().FullName()) + "/" + c.Method() }

// Answer returns a new answer of the method.
func (c Call) Answer() proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(c.method().Output().FullName())
	if err != nil { // every message of the API is registered
		panic(fmt.Sprintf("find the answer of %s: %v", c.Method(), err))
	}
	return kind.New().Interface()
}

func (c Call) method() protoreflect.MethodDescriptor {
	return methods()[c.Request.ProtoReflect().Descriptor().FullName()]
}

// Shows reports whether a call only shows something.
func (c Call) Shows() bool {
	method := c.Method()
	return strings.HasPrefix(method, "Get") || strings.HasPrefix(method, "List") || method == "Explain"
}

// Proto returns the call in the form of the API.
func (c Call) Proto() *pb.Call {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c.Request)
	var stable bytes.Buffer // protojson varies its spaces
	if err == nil {
		err = json.Compact(&stable, text)
	}
	if err != nil { // only a text that is no UTF-8, which the broker does not store
		panic(fmt.Sprintf("write a request of %T: %v", c.Request, err))
	}
	return &pb.Call{Method: c.Path(), Request: stable.String(), Agent: c.Agent, Missing: c.Missing, Program: c.Program}
}

// Read returns a call that the broker proposes. It fails for a method or a field of a newer broker.
func Read(call *pb.Call) (Call, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(call.GetMethod(), "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return Call{}, fmt.Errorf("find the method %s: %w", call.GetMethod(), err)
	}
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return Call{}, fmt.Errorf("%s is no method", call.GetMethod())
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return Call{}, fmt.Errorf("find the request of %s: %w", call.GetMethod(), err)
	}
	request := kind.New().Interface()
	if err := protojson.Unmarshal([]byte(call.GetRequest()), request); err != nil {
		return Call{}, fmt.Errorf("read the request of %s: %w", call.GetMethod(), err)
	}
	return Call{Request: request, Agent: call.GetAgent(), Missing: call.GetMissing(), Program: call.GetProgram()}, nil
}

// Protos returns calls in the form of the API.
func Protos(calls []Call) []*pb.Call {
	var list []*pb.Call
	for _, c := range calls {
		list = append(list, c.Proto())
	}
	return list
}

// Size returns about how many bytes calls take in an answer.
func Size(calls []Call) int {
	const method = 64
	n := 0
	for _, c := range calls {
		n += method + len(c.Agent) + proto.Size(c.Request)*2
	}
	return n
}

// methods has the method of each request. No two methods of the API have the same request.
var methods = sync.OnceValue(func() map[protoreflect.FullName]protoreflect.MethodDescriptor {
	all := map[protoreflect.FullName]protoreflect.MethodDescriptor{}
	api := pb.File_brokerd_v1_call_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			of := f.Services().Get(i).Methods()
			for j := range of.Len() {
				all[of.Get(j).Input().FullName()] = of.Get(j)
			}
		}
		return true
	})
	return all
})
