package jsonform

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// EnumName returns the short name of a value, acked for DELIVERY_STATE_ACKED, and "" for the unset one.
func EnumName(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	if n == 0 {
		return ""
	}
	v := e.Values().ByNumber(n)
	if v == nil { // of a newer broker
		return strconv.Itoa(int(n))
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(e)))
}

// EnumNames returns the short names of an enum's values, without the unset one.
func EnumNames(e protoreflect.EnumDescriptor) []string {
	var all []string
	for i := range e.Values().Len() {
		if n := EnumName(e, e.Values().Get(i).Number()); n != "" {
			all = append(all, n)
		}
	}
	return all
}

// ParseEnum returns the number of the value with a short name, in any case. It returns false if there
// is none.
func ParseEnum(e protoreflect.EnumDescriptor, name string) (protoreflect.EnumNumber, bool) {
	v := e.Values().ByName(protoreflect.Name(enumPrefix(e) + strings.ToUpper(name)))
	if v == nil || v.Number() == 0 {
		return 0, false
	}
	return v.Number(), true
}

// enumPrefix returns DELIVERY_STATE_ for the enum DeliveryState.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}
