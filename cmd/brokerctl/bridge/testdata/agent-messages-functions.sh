# Functions of agents of the format agent-messages that only have bash and jq. They run in the parent folder.
root=.agent-messages

# write_json FILE [JQ-OPTION...] FILTER writes a new file.
write_json() {
  local file=$1
  shift
  jq -n "$@" >"$root/.new-$$" && mv "$root/.new-$$" "$file"
}

# change FILE [JQ-OPTION...] FILTER changes a file.
change() {
  local file=$1
  shift
  jq "$@" "$file" >"$root/.new-$$" && mv "$root/.new-$$" "$file"
}

initialize_message_bus() {
  mkdir -p "$1/$root"/{inbox,outbox,archive,events,broadcasts}
  write_json "$1/$root/registry.json" '{agents: {}, event_subscriptions: {}}'
}

register_agent() {
  mkdir -p "$root/inbox/$1"
  change "$root/registry.json" --arg id "$1" --arg role "$2" --arg path "$3" --argjson caps "$4" \
    '.agents[$id] = {role: $role, worktree_path: $path, capabilities: $caps}'
}

# put FILE ID FROM TO TYPE SUBJECT PAYLOAD [MORE] writes a message; MORE is an object with other fields.
put() {
  write_json "$1" --arg id "$2" --arg from "$3" --arg to "$4" --arg type "$5" --arg subject "$6" --argjson payload "$7" \
    --argjson more "${8:-{\}}" '{message_id: $id, from_agent: $from, to_agent: $to, message_type: $type, subject: $subject,
      payload: $payload, timestamp: (now | todate), status: "delivered"} + $more'
}

send_message() {
  local id
  id="m_$(random_string 12)"
  put "$root/inbox/$2/$id.json" "$id" "$1" "$2" "$3" "$4" "$5" "{\"priority\": \"${6:-normal}\"}"
}

broadcast_message() {
  local id name
  id="b_$(random_string 12)"
  put "$root/broadcasts/$id.json" "$id" "$1" ALL "$2" "$3" "$4"
  for name in "$root"/inbox/*/; do
    name=$(basename "$name")
    [[ $name == "$1" ]] || put "$root/inbox/$name/$id.json" "$id" "$1" ALL "$2" "$3" "$4"
  done
}

publish_event() {
  local id
  id="e_$(random_string 12)"
  mkdir -p "$root/events/$1"
  write_json "$root/events/$1/$id.json" --arg id "$id" --arg type "$1" --arg from "$2" --argjson data "$3" \
    '{event_id: $id, event_type: $type, source_agent: $from, event_data: $data, timestamp: (now | todate)}'
}

check_inbox() {
  local file
  for file in "$root/inbox/$1"/*.json; do
    [[ -e $file.read ]] || echo "$file"
  done
}

read_message() {
  jq -r '.subject' "$2"
  date >"$2.read"
}

respond_to_message() {
  local id
  id="r_$(random_string 12)"
  put "$root/inbox/$(jq -r .from_agent "$2")/$id.json" "$id" "$1" "$(jq -r .from_agent "$2")" response "Re: $(jq -r .subject "$2")" "$3" \
    "$(jq '{in_reply_to: .message_id, conversation_id}' "$2")"
}

create_handoff_package() {
  local id dir
  id="handoff_$(random_string 8)"
  dir="$root/handoffs/$id"
  mkdir -p "$dir/artifacts"
  printf '# %s\n\n%s\n' "$3" "$5" >"$dir/HANDOFF.md"
  jq -r '.[]' <<<"$4" | while read -r file; do cp "$file" "$dir/artifacts/"; done
  write_json "$dir/metadata.json" --arg id "$id" --arg from "$1" '{handoff_id: $id, from_agent: $from, status: "pending_acceptance"}'
  send_message "$1" "$2" handoff_request "Handoff ready: $3" "{\"handoff_id\": \"$id\", \"handoff_dir\": \"$dir\"}" high
}
