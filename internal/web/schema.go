package web

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/jsonform"
	"brokerd/internal/rules"
)

// problemSchema is the schema of an error.
var problemSchema = object{
	"type":     "object",
	"required": []string{"error"},
	"properties": object{"error": object{
		"type":     "object",
		"required": []string{"code", "message"},
		"properties": object{
			"code":    object{"type": "string", "description": "The class of the error."},
			"reason":  object{"type": "string", "description": "The broker's stable name of the error."},
			"message": object{"type": "string", "description": "What is wrong and what to do, for people."},
			"fields": object{"type": "array", "description": "The fields that the broker refused.", "items": object{
				"type":       "object",
				"properties": object{"field": object{"type": "string"}, "message": object{"type": "string"}},
			}},
			"retry_after": object{"type": "string", "description": "When to try again, in seconds, such as 1.2s."},
		},
	}},
}

// refer returns the reference to the schema of a message, and makes the schema.
func (d *description) refer(m protoreflect.MessageDescriptor) object {
	name := string(m.Name())
	if _, known := d.schemas[name]; !known {
		d.schemas[name] = nil // a message may contain itself
		d.schemas[name] = d.message(m)
	}
	return object{"$ref": "#/components/schemas/" + name}
}

// message returns the schema of a message.
func (d *description) message(m protoreflect.MessageDescriptor) object {
	properties, required := object{}, []string(nil)
	if kind := jsonform.Kind(m); kind != "" {
		properties["kind"] = object{"const": kind}
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		schema := d.field(f)
		if text := d.comments[f.FullName()]; text != "" {
			schema["description"] = text
		}
		properties[string(f.Name())] = schema
		rule := rules.Of(f)
		if (rule.GetRequired() || rule.GetNotBlank()) && (f.ContainingOneof() == nil || f.HasOptionalKeyword()) {
			required = append(required, string(f.Name()))
		}
	}
	schema := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	if text := d.comments[m.FullName()]; text != "" {
		schema["description"] = text
	}
	return schema
}

// field returns the schema of a field of a message.
func (d *description) field(f protoreflect.FieldDescriptor) object {
	switch {
	case f.IsMap():
		return object{"type": "object", "additionalProperties": d.value(f.MapValue(), false)}
	case f.IsList():
		return d.value(f, false)
	}
	return d.value(f, f.HasPresence() || f.Kind() == protoreflect.EnumKind)
}

// value returns the schema of the values of a field; they may be null if it is nullable.
func (d *description) value(f protoreflect.FieldDescriptor, nullable bool) object {
	if jsonform.IsJSONText(f) {
		return object{}
	}
	schema := d.scalar(f)
	bound(schema, f)
	if f.IsList() {
		list := object{"type": "array", "items": schema}
		if most := rules.Of(f).GetMaxItems(); most > 0 {
			list["maxItems"] = most
		}
		return list
	}
	switch kind := schema["type"].(type) {
	case string:
		if nullable {
			schema["type"] = []string{kind, "null"}
			if values, ok := schema["enum"].([]any); ok {
				schema["enum"] = append(values, nil)
			}
		}
	default:
		if nullable && schema["$ref"] != nil {
			return object{"oneOf": []object{schema, {"type": "null"}}}
		}
	}
	return schema
}

// bound adds the bounds that the rule of a field has. A text of so many bytes has at most as many characters. A number that
// cannot be absent is 0 if it is.
func bound(schema object, f protoreflect.FieldDescriptor) {
	rule := rules.Of(f)
	most := max(rule.GetLine(), rule.GetText())
	if rule.GetName() || rule.GetNewName() || rule.GetPattern() {
		most = 128
	}
	if most > 0 {
		schema["maxLength"] = most
	}
	if rule.GetPageSize() {
		schema["minimum"], schema["maximum"] = 0, 1000
	}
	if rule != nil && (rule.Min != nil || rule.Max != nil) {
		schema["minimum"] = rule.GetMin()
		if !f.HasPresence() && !f.IsList() {
			schema["minimum"] = min(rule.GetMin(), 0)
		}
	}
	if rule != nil && rule.Max != nil {
		schema["maximum"] = rule.GetMax()
	}
}

// scalar returns the schema of one value.
func (d *description) scalar(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind:
		switch f.Message().FullName() {
		case "google.protobuf.Timestamp":
			return object{"type": "string", "format": "date-time"}
		case "google.protobuf.Duration":
			return object{"type": "string", "examples": []string{"1m30s"}}
		case "brokerd.v1.StateValue":
			return object{}
		case "brokerd.v1.Names":
			return object{"type": "array", "items": object{"type": "string"}}
		}
		return d.refer(f.Message())
	case protoreflect.EnumKind:
		var values []any
		for _, name := range jsonform.EnumNames(f.Enum()) {
			values = append(values, name)
		}
		return object{"type": "string", "enum": values}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.Int32Kind:
		return object{"type": "integer", "format": "int32"}
	case protoreflect.Int64Kind:
		return object{"type": "integer", "format": "int64"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	default:
		return object{"type": "string"}
	}
}
