package main

import (
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// writeTypes writes the .pyi of a file's messages and enums, for type checkers and editors. The
// classes themselves are built when Python loads the _pb2.py.
func writeTypes(plugin *protogen.Plugin, file *protogen.File) {
	g := newFile(plugin, file, "_pb2.pyi")
	g.P("import builtins")
	g.P("from typing import Iterable, Literal, Mapping, MutableMapping, Optional, Union")
	g.P()
	g.P("from google.protobuf import descriptor, message")
	g.P("from google.protobuf.internal import containers")
	writeImports(g, file.Proto)
	g.P()
	g.P("DESCRIPTOR: descriptor.FileDescriptor")
	for _, enum := range file.Enums {
		writeEnum(g, enum)
	}
	for _, m := range file.Messages {
		writeMessage(g, m)
	}
}

func writeEnum(g *protogen.GeneratedFile, enum *protogen.Enum) {
	name := string(enum.Desc.Name())
	g.P()
	g.P()
	g.P("class ", name, "(builtins.int):")
	g.P("    @classmethod")
	g.P("    def Name(cls, number: builtins.int) -> builtins.str: ...")
	g.P("    @classmethod")
	g.P("    def Value(cls, name: builtins.str) -> ", name, ": ...")
	g.P()
	for _, value := range enum.Values {
		g.P(value.Desc.Name(), ": ", name)
	}
}

func writeMessage(g *protogen.GeneratedFile, m *protogen.Message) {
	g.P()
	g.P()
	g.P("class ", m.Desc.Name(), "(message.Message):")
	g.P("    DESCRIPTOR: descriptor.Descriptor")
	var keywords []string
	for _, field := range m.Fields {
		name, types := string(field.Desc.Name()), typesOf(m, field)
		if name == "from" { // a keyword of Python: a program uses getattr and **{"from": …}
			continue
		}
		if types.settable {
			g.P("    ", name, ": ", types.read)
		} else {
			g.P("    @property")
			g.P("    def ", name, "(self) -> ", types.read, ": ...")
		}
		keywords = append(keywords, name+": Optional["+types.keyword+"] = ...")
	}
	if len(keywords) > 0 {
		g.P("    def __init__(self, *, ", strings.Join(keywords, ", "), ") -> None: ...")
	} else {
		g.P("    def __init__(self) -> None: ...")
	}
	var present []string // what HasField accepts
	for _, field := range m.Fields {
		if field.Desc.HasPresence() {
			present = append(present, string(field.Desc.Name()))
		}
	}
	for _, oneof := range m.Oneofs {
		if oneof.Desc.IsSynthetic() {
			continue
		}
		present = append(present, string(oneof.Desc.Name()))
		var members []string
		for _, field := range oneof.Fields {
			members = append(members, string(field.Desc.Name()))
		}
		g.P("    def WhichOneof(self, oneof_group: ", literal(string(oneof.Desc.Name())),
			") -> Optional[", literal(members...), "]: ...")
	}
	if len(present) > 0 {
		g.P("    def HasField(self, field_name: ", literal(present...), ") -> builtins.bool: ...")
	}
}

// writeServiceTypes writes the .pyi of a file's services. A method of a stub has the type Any: it
// depends on the channel, which is one of grpc or of grpc.aio.
func writeServiceTypes(plugin *protogen.Plugin, file *protogen.File) {
	g := newFile(plugin, file, "_pb2_grpc.pyi")
	g.P("from typing import Any")
	for _, service := range file.Services {
		g.P()
		g.P()
		g.P("class ", service.GoName, "Stub:")
		g.P("    def __init__(self, channel: Any) -> None: ...")
		for _, method := range service.Methods {
			g.P("    ", method.GoName, ": Any")
		}
	}
}

// fieldTypes are the types of a field: as an attribute, and as a keyword of the constructor.
type fieldTypes struct {
	read, keyword string
	settable      bool
}

func typesOf(m *protogen.Message, field *protogen.Field) fieldTypes {
	switch {
	case field.Desc.IsMap():
		key, value := scalar(field.Desc.MapKey()), scalar(field.Desc.MapValue())
		return fieldTypes{read: "MutableMapping[" + key + ", " + value + "]", keyword: "Mapping[" + key + ", " + value + "]"}
	case field.Desc.IsList() && field.Message != nil:
		name := reference(m, field.Message.Desc)
		return fieldTypes{read: "containers.RepeatedCompositeFieldContainer[" + name + "]", keyword: "Iterable[" + name + "]"}
	case field.Desc.IsList():
		name := single(m, field)
		return fieldTypes{read: "containers.RepeatedScalarFieldContainer[" + name.read + "]", keyword: "Iterable[" + name.keyword + "]"}
	}
	return single(m, field)
}

func single(m *protogen.Message, field *protogen.Field) fieldTypes {
	switch {
	case field.Message != nil:
		name := reference(m, field.Message.Desc)
		return fieldTypes{read: name, keyword: name}
	case field.Enum != nil:
		name := reference(m, field.Enum.Desc)
		return fieldTypes{read: name, keyword: "Union[" + name + ", builtins.int]", settable: true}
	}
	name := scalar(field.Desc)
	return fieldTypes{read: name, keyword: name, settable: true}
}

func scalar(field protoreflect.FieldDescriptor) string {
	switch field.Kind() {
	case protoreflect.StringKind:
		return "builtins.str"
	case protoreflect.BytesKind:
		return "builtins.bytes"
	case protoreflect.BoolKind:
		return "builtins.bool"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "builtins.float"
	default:
		return "builtins.int"
	}
}

// reference returns the name of a message or enum as m's file writes it.
func reference(m *protogen.Message, to protoreflect.Descriptor) string {
	if to.ParentFile().Path() == m.Desc.ParentFile().Path() {
		return string(to.Name())
	}
	_, name := module(to.ParentFile().Path())
	return name + "." + string(to.Name())
}

func literal(names ...string) string {
	return `Literal["` + strings.Join(names, `", "`) + `"]`
}
