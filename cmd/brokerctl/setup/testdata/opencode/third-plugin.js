// Connects opencode with brokerd. `brokerctl setup opencode` writes this file and `--remove` removes it.
import { spawn } from "node:child_process"

const agent = []
const listening = []

export const Brokerd = async ({ client, directory }) => {
  const children = new Set() // sessions of subagents: they receive no mail
  const continued = new Set() // sessions whose turn the hook has started
  const listeners = new Map() // session → the hook that waits for its next message

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

  const stopListening = (session) => {
    listeners.get(session)?.kill()
    listeners.delete(session)
  }

  // listen continues the session with new messages. With an option in listening, it waits for them.
  const listen = async (session) => {
    stopListening(session)
    const active = continued.delete(session)
    const { child, result } = call(listening, {
      hook_event_name: "Stop",
      session_id: session,
      stop_hook_active: active,
    })
    listeners.set(session, child)
    const { out } = await result
    const answer = out.trim() ? JSON.parse(out) : {}
    const late = listeners.get(session) !== child // the user has started a turn
    if (!late) listeners.delete(session)
    if (answer.decision !== "block") return
    if (late) return returned(session)
    continued.add(session)
    await client.session
      .promptAsync({ path: { id: session }, body: { parts: [{ type: "text", text: answer.reason }] } })
      .catch(() => returned(session))
  }

  // returned says that the session has not got the messages that its hook has printed.
  const returned = (session) => call([], { hook_event_name: "UserPromptSubmit", session_id: session }).result

  return {
    "tool.execute.before": async (input, output) => {
      const { code, err } = await call([], {
        hook_event_name: "PreToolUse",
        session_id: input.sessionID,
        tool_name: input.tool,
        tool_input: output.args,
      }).result
      if (code === 2) throw new Error(err.trim())
    },
    "tool.execute.after": async (input, output) => {
      const { out } = await call([], {
        hook_event_name: "PostToolUse",
        session_id: input.sessionID,
        tool_name: input.tool,
        tool_input: input.args,
        agent_id: children.has(input.sessionID) ? input.sessionID : "",
      }).result
      const mail = out.trim() && JSON.parse(out).hookSpecificOutput?.additionalContext
      if (mail) output.output += "\n" + mail
    },
    event: async ({ event }) => {
      const session = event.properties?.sessionID ?? event.properties?.info?.id
      if (event.type === "session.created" && event.properties.info.parentID) children.add(session)
      if (event.type === "session.status" && event.properties.status.type === "busy") stopListening(session)
      if (event.type === "session.idle" && !children.has(session)) listen(session).catch(() => {})
      if (event.type === "session.deleted") {
        stopListening(session)
        // The program goes on: it reports that the agent has stopped when its MCP server ends.
        await call([], { hook_event_name: "SessionEnd", session_id: session, reason: "clear" }).result
      }
    },
  }
}
