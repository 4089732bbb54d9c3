// Connects opencode with brokerd. `brokerctl setup opencode` writes this file and `--remove` removes it.
//
// The model receives new messages with the result of a tool, with a prompt of the user, at the end of a turn, and while
// the session is idle: a listener waits for them, and promptAsync starts a turn. They are read when a request to the
// model contains their marks.
import { spawn } from "node:child_process"

const agent = []

// The tools that write a file.
const writers = ["edit", "write", "patch", "multiedit", "apply_patch"]

export const Brokerd = async ({ client, directory }) => {
  const once = process.argv.includes("run") // ends with its first turn
  const children = new Set() // sessions of subagents: they receive no mail
  const continued = new Set() // sessions whose turn the hook has started
  const listeners = new Map() // session → the hook that waits for its next message
  const offered = new Map() // mark of messages that no request had yet → their session, and whether its turn has ended

  // call runs `brokerctl hook opencode` with an event. The promise has its exit code and output.
  const call = (args, event) => {
    const child = spawn("brokerctl", ["hook", "opencode", ...agent, ...args], { cwd: directory })
    const result = new Promise((resolve) => {
      let out = ""
      let err = ""
      child.stdout.on("data", (data) => (out += data))
      child.stderr.on("data", (data) => (err += data))
      child.stdin.on("error", () => {}) // the exit code reports it
      child.on("error", (error) => resolve({ code: 1, out: "", err: String(error) }))
      child.on("close", (code) => resolve({ code, out, err }))
    })
    child.stdin.end(JSON.stringify({ cwd: directory, ...event }))
    return { child, result }
  }

  const marksIn = (text) => [...text.matchAll(/^=== ([0-9a-f]{16}) /gm)].map((match) => match[1])

  // offer notes the messages in a text that the session will get.
  const offer = (session, text) => marksIn(text).forEach((mark) => offered.set(mark, { session, ended: false }))

  // returned says that the session will not get a text.
  const returned = (session, text) => {
    marksIn(text).forEach((mark) => offered.delete(mark))
    return call([], { hook_event_name: "BrokerdReturned", session_id: session, prompt: text }).result
  }

  // unheard returns messages that no request of the turn had: with the result of a tool that Esc has ended, for example.
  // A later request may have them.
  const unheard = async (session) => {
    const marks = []
    for (const [mark, of] of offered) {
      if (of.session !== session) continue
      if (of.ended) offered.delete(mark)
      else marks.push(mark)
      of.ended = true
    }
    if (marks.length === 0) return
    const prompt = marks.map((mark) => `=== ${mark} `).join("\n")
    await call([], { hook_event_name: "BrokerdReturned", session_id: session, prompt }).result
  }

  // context returns what a hook adds to the conversation.
  const context = async (event) => {
    const { out } = await call([], event).result
    const text = (out.trim() && JSON.parse(out).hookSpecificOutput?.additionalContext) || ""
    offer(event.session_id, text)
    return text
  }

  // start starts a turn of the session with a text.
  const start = async (session, text) => {
    offer(session, text)
    await client.session
      .promptAsync({ path: { id: session }, body: { parts: [{ type: "text", text }] }, throwOnError: true })
      .catch(() => returned(session, text))
  }

  const stopListening = (session) => {
    listeners.get(session)?.kill()
    listeners.delete(session)
  }

  // rest ends a turn: it continues the session with new messages, or waits for them.
  const rest = async (session) => {
    stopListening(session)
    if (once) return
    await unheard(session)
    const active = continued.delete(session)
    const end = call([], { hook_event_name: "Stop", session_id: session, stop_hook_active: active })
    listeners.set(session, end.child)
    const { out } = await end.result
    const answer = out.trim() ? JSON.parse(out) : {}
    const late = listeners.get(session) !== end.child // the user has started a turn
    if (answer.decision === "block") {
      if (late) return returned(session, answer.reason)
      listeners.delete(session)
      continued.add(session)
      return start(session, answer.reason)
    }
    if (late) return
    const wait = call(["--wake"], { hook_event_name: "Stop", session_id: session })
    listeners.set(session, wait.child)
    const { code, err } = await wait.result
    const over = listeners.get(session) !== wait.child
    if (!over) listeners.delete(session)
    if (code === 2) await (over ? returned(session, err) : start(session, err))
  }

  return {
    "chat.message": async (input, output) => {
      const session = input.sessionID
      const said = output.parts.find((part) => part.type === "text")
      if (!said || children.has(session) || output.parts.some((part) => marksIn(part.text ?? "").length)) return
      stopListening(session)
      const text = await context({ hook_event_name: "UserPromptSubmit", session_id: session, prompt: said.text })
      if (text) output.parts.push({ ...said, id: said.id + "brokerd", text, synthetic: true })
    },
    "tool.execute.before": async (input, output) => {
      if (!writers.includes(input.tool)) return
      const { code, err } = await call([], {
        hook_event_name: "PreToolUse",
        session_id: input.sessionID,
        tool_name: input.tool,
        tool_input: output.args,
      }).result
      if (code === 2) throw new Error(err.trim())
    },
    "tool.execute.after": async (input, output) => {
      const mail = await context({
        hook_event_name: "PostToolUse",
        session_id: input.sessionID,
        tool_name: input.tool,
        tool_input: input.args,
        agent_id: children.has(input.sessionID) ? input.sessionID : "",
      })
      if (mail) output.output += "\n" + mail
    },
    "experimental.chat.messages.transform": async (input, output) => {
      if (offered.size === 0) return
      const request = JSON.stringify(output.messages)
      for (const [mark, of] of offered) {
        if (!request.includes("=== " + mark + " ")) continue
        offered.delete(mark)
        call([], { hook_event_name: "BrokerdAccepted", session_id: of.session, prompt: `=== ${mark} ` })
      }
    },
    event: async ({ event }) => {
      const session = event.properties?.sessionID ?? event.properties?.info?.id
      if (event.type === "session.created" && event.properties.info.parentID) children.add(session)
      if (event.type === "session.status" && event.properties.status.type === "busy") stopListening(session)
      if (event.type === "session.idle" && !children.has(session)) rest(session).catch(() => {})
      if (event.type === "session.deleted") {
        stopListening(session)
        // The program goes on: it reports that the agent has stopped when its MCP server ends.
        await call([], { hook_event_name: "SessionEnd", session_id: session, reason: "clear" }).result
      }
    },
  }
}
