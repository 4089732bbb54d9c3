import { create, type MessageInitShape } from "@bufbuild/protobuf";

import { Invalid } from "./errors.js";
import { TargetSchema, type Target } from "./gen/brokerd/v1/message_pb.js";

/**
 * Returns the target that a receiver names: an agent ("builder-1"), a role ("role:builder"), a
 * channel ("channel:general"), a pattern of names ("builder-*"), or "everyone".
 */
export function parseTarget(to: string): Target {
  const [, kind, name] = /^(role|channel):(.*)$/s.exec(to) ?? [];
  if (to === "" || name === "") {
    throw new Invalid(`receiver ${JSON.stringify(to)}: name an agent, role:NAME, channel:NAME, a pattern such as builder-*, or everyone`);
  }
  if (["everyone", "all", "ALL", "*"].includes(to)) return target({ case: "everyone", value: true });
  if (kind === "role" || kind === "channel") {
    if (/[*?]/.test(name!)) throw new Invalid(`receiver ${JSON.stringify(to)}: a pattern matches names of agents only, not of a ${kind}`);
    return target({ case: kind, value: name! });
  }
  return target({ case: /[*?]/.test(to) ? "pattern" : "agent", value: to });
}

function target(to: MessageInitShape<typeof TargetSchema>["to"]): Target {
  return create(TargetSchema, to === undefined ? {} : { to });
}
