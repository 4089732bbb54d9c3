package fakemodel

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
)

// An object is one of JSON.
type object map[string]any

// at returns a field of a JSON value, or nil.
func at(v any, name string) any {
	switch o := v.(type) {
	case object:
		return o[name]
	case map[string]any:
		return o[name]
	}
	return nil
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

// flat returns the text of a content: a text, a list of parts with texts, or anything else as JSON.
func flat(v any) string {
	switch c := v.(type) {
	case nil:
		return ""
	case string:
		return c
	case []any:
		var all []string
		for _, p := range c {
			if text, ok := at(p, "text").(string); ok {
				all = append(all, text)
			} else {
				all = append(all, flat(p))
			}
		}
		return strings.Join(all, "\n")
	}
	text, _ := json.Marshal(v) // it came from JSON
	return string(text)
}

// names returns the names of tools.
func names(tools []any, name func(tool any) any) (all []string) {
	for _, t := range tools {
		all = append(all, str(name(t)))
	}
	return all
}

var lastID atomic.Int64

func newID(prefix string) string { return fmt.Sprintf("%s%d", prefix, lastID.Add(1)) }

// compact returns arguments as JSON.
func compact(arguments object) string {
	text, _ := json.Marshal(arguments) // always encodes
	return string(text)
}

var apis = []api{
	{regexp.MustCompile(`/messages$`), parseMessages, func(b object) []string {
		return names(list(b["tools"]), func(t any) any { return at(t, "name") })
	}, writeMessages},
	{regexp.MustCompile(`/responses$`), parseResponses, func(b object) (all []string) {
		for _, t := range list(b["tools"]) {
			all = append(all, str(at(t, "name")))
			for _, inner := range list(at(t, "tools")) { // of a namespace
				all = append(all, str(at(t, "name"))+"__"+str(at(inner, "name")))
			}
		}
		return all
	}, writeResponses},
	{regexp.MustCompile(`/chat/completions$`), parseChat, func(b object) []string {
		return names(list(b["tools"]), func(t any) any { return at(at(t, "function"), "name") })
	}, writeChat},
	{regexp.MustCompile(`:(streamG|g)enerateContent$`), parseGemini, func(b object) (all []string) {
		for _, t := range list(b["tools"]) {
			all = append(all, names(list(at(t, "functionDeclarations")), func(f any) any { return at(f, "name") })...)
		}
		return all
	}, writeGemini},
}

// Anthropic Messages.

func parseMessages(b object) []Part {
	parts := []Part{{Text, "system", flat(b["system"])}}
	for _, m := range list(b["messages"]) {
		role, content := str(at(m, "role")), at(m, "content")
		if text, ok := content.(string); ok {
			parts = append(parts, Part{Text, role, text})
		}
		for _, p := range list(content) {
			switch at(p, "type") {
			case "tool_use":
				parts = append(parts, Part{Call, role, flat(at(p, "input"))})
			case "tool_result":
				parts = append(parts, Part{Result, role, flat(at(p, "content"))})
			default:
				parts = append(parts, Part{Text, role, flat([]any{p})})
			}
		}
	}
	return parts
}

func writeMessages(w *writer, b object, a answer) {
	message := object{
		"id": newID("msg_"), "type": "message", "role": "assistant", "model": b["model"], "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": 10, "output_tokens": 1},
	}
	block, stop := object{"type": "text", "text": a.text}, "end_turn"
	begun, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": a.text}
	if a.tool != "" {
		block, stop = object{"type": "tool_use", "id": newID("toolu_"), "name": a.tool, "input": a.arguments}, "tool_use"
		begun = object{"type": "tool_use", "id": block["id"], "name": a.tool, "input": object{}}
		delta = object{"type": "input_json_delta", "partial_json": compact(a.arguments)}
	}
	if !w.stream {
		message["content"], message["stop_reason"] = []any{block}, stop
		w.whole(message)
		return
	}
	w.event("message_start", object{"message": message})
	w.event("content_block_start", object{"index": 0, "content_block": begun})
	w.event("content_block_delta", object{"index": 0, "delta": delta})
	w.event("content_block_stop", object{"index": 0})
	w.event("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 5}})
	w.event("message_stop", object{})
}

// OpenAI Responses.

func parseResponses(b object) []Part {
	parts := []Part{{Text, "system", flat(b["instructions"])}}
	if text, ok := b["input"].(string); ok {
		parts = append(parts, Part{Text, "user", text})
	}
	for _, p := range list(b["input"]) {
		switch kind := str(at(p, "type")); {
		case at(p, "role") != nil:
			parts = append(parts, Part{Text, str(at(p, "role")), flat(at(p, "content"))})
		case strings.HasSuffix(kind, "call_output"):
			parts = append(parts, Part{Result, "tool", flat(at(p, "output"))})
		case strings.HasSuffix(kind, "call"):
			parts = append(parts, Part{Call, "assistant", flat(p)})
		default:
			parts = append(parts, Part{Text, "", flat(p)})
		}
	}
	return parts
}

func writeResponses(w *writer, b object, a answer) {
	item := object{
		"type": "message", "id": newID("msg_"), "role": "assistant", "status": "completed",
		"content": []any{object{"type": "output_text", "text": a.text, "annotations": []any{}}},
	}
	if a.tool != "" {
		item = object{"type": "function_call", "id": newID("fc_"), "call_id": newID("call_"), "name": a.tool,
			"arguments": compact(a.arguments), "status": "completed"}
		if at := strings.LastIndex(a.tool, "__"); at > 0 {
			item["namespace"], item["name"] = a.tool[:at], a.tool[at+2:]
		}
	}
	response := func(status string, output ...any) object {
		return object{
			"id": newID("resp_"), "object": "response", "created_at": 0, "model": b["model"], "status": status, "output": output,
			"usage": object{"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
		}
	}
	if !w.stream {
		w.whole(response("completed", item))
		return
	}
	w.event("response.created", object{"response": response("in_progress")})
	w.event("response.output_item.added", object{"output_index": 0, "item": item})
	if a.tool == "" {
		w.event("response.output_text.delta", object{"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": a.text})
	}
	w.event("response.output_item.done", object{"output_index": 0, "item": item})
	w.event("response.completed", object{"response": response("completed", item)})
}

// OpenAI Chat Completions.

func parseChat(b object) (parts []Part) {
	for _, m := range list(b["messages"]) {
		role := str(at(m, "role"))
		if text := flat(at(m, "content")); text != "" {
			parts = append(parts, Part{cond(role == "tool", Result, Text), role, text})
		}
		for _, c := range list(at(m, "tool_calls")) {
			parts = append(parts, Part{Call, role, flat(at(c, "function"))})
		}
	}
	return parts
}

func writeChat(w *writer, b object, a answer) {
	message, reason := object{"role": "assistant", "content": a.text}, "stop"
	if a.tool != "" {
		reason = "tool_calls"
		message["content"] = nil
		message["tool_calls"] = []any{object{
			"index": 0, "id": newID("call_"), "type": "function",
			"function": object{"name": a.tool, "arguments": compact(a.arguments)},
		}}
	}
	choice := object{"index": 0, "finish_reason": nil}
	out := object{
		"id": newID("chatcmpl_"), "object": "chat.completion.chunk", "created": 0, "model": b["model"], "choices": []any{choice},
	}
	if !w.stream {
		out["object"] = "chat.completion"
		choice["message"], choice["finish_reason"] = message, reason
		out["usage"] = object{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
		w.whole(out)
		return
	}
	choice["delta"] = message
	w.event("", out)
	choice["delta"], choice["finish_reason"] = object{}, reason
	w.event("", out)
	fmt.Fprint(w.w, "data: [DONE]\n\n")
}

// Gemini generateContent.

func parseGemini(b object) []Part {
	parts := []Part{{Text, "system", flat(at(b["systemInstruction"], "parts"))}}
	for _, m := range list(b["contents"]) {
		role := str(at(m, "role"))
		for _, p := range list(at(m, "parts")) {
			switch {
			case at(p, "functionCall") != nil:
				parts = append(parts, Part{Call, role, flat(at(p, "functionCall"))})
			case at(p, "functionResponse") != nil:
				parts = append(parts, Part{Result, role, flat(at(at(p, "functionResponse"), "response"))})
			default:
				parts = append(parts, Part{Text, role, str(at(p, "text"))})
			}
		}
	}
	return parts
}

func writeGemini(w *writer, b object, a answer) {
	part := object{"text": a.text}
	if a.tool != "" {
		part = object{"functionCall": object{"id": newID("call_"), "name": a.tool, "args": a.arguments}, "thoughtSignature": "c2ln"}
	}
	config := b["generationConfig"]
	if at(config, "responseJsonSchema") != nil || at(config, "responseSchema") != nil { // the choice of a model, or of who speaks
		part = object{"text": `{"reasoning":"-","next_speaker":"user","model_choice":"flash","complexity_reasoning":"-","complexity_score":1}`}
	}
	out := object{
		"candidates": []any{object{
			"index": 0, "content": object{"role": "model", "parts": []any{part}}, "finishReason": "STOP",
		}},
		"usageMetadata": object{"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}, "modelVersion": "fake",
	}
	if w.stream {
		w.event("", out)
		return
	}
	w.whole(out)
}
