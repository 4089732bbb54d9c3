// Package jsonform is the JSON form of the API's messages. brokerctl prints it with -o json, and the
// HTTP server reads and writes it. docs/json.md describes it for users.
//
// protojson would not do: it quotes 64-bit numbers, leaves payloads quoted inside strings, and spells
// enums with their prefix in capitals. In this form:
//   - names are those of the proto, and fields stand in the order of the proto;
//   - an answer shows every field: absent messages and unset enums are null, and of a oneof only the
//     field that is set appears;
//   - a request may leave out every field, and null leaves a field out;
//   - a request may also have 64-bit numbers and enums as protojson writes them: the broker proposes
//     calls in that form;
//   - payloads, details and values are nested JSON;
//   - times are RFC 3339 in UTC, and durations are text such as "1m30s".
//
// Append writes a message, Decode reads one, and Set fills in one field from texts, as a query has
// them. A Problem is the form of an error.
package jsonform
