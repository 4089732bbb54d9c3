import { BinaryReader } from "@bufbuild/protobuf/wire";
import type { ConnectError } from "@connectrpc/connect";

/** Details are what a refused call says beyond its code and text. */
export interface Details {
  reason: string;
  facts: Record<string, string>;
  /** What is wrong, by the name of the field. */
  fields: Record<string, string>;
  /** The name of what is missing. */
  resource: string;
  /** Milliseconds; 0 = the broker does not say that waiting helps. */
  retryAfter: number;
}

/**
 * Reads the google.rpc details of an error. They are five small messages, so they are read from the
 * wire format here: the package needs no generated code of another project.
 */
export function detailsOf(error: ConnectError): Details {
  const found: Details = {
    reason: error.metadata.get("brokerd-reason") ?? "",
    facts: {},
    fields: {},
    resource: "",
    retryAfter: 0,
  };
  for (const detail of error.details) {
    if (!("value" in detail) || !(detail.value instanceof Uint8Array) || !("type" in detail)) continue;
    switch (detail.type) {
      case "google.rpc.ErrorInfo":
        read(detail.value, (number, reader) => {
          if (number !== 3) return false;
          const [key, value] = strings(reader.bytes());
          found.facts[key!] = value!;
          return true;
        });
        break;
      case "google.rpc.BadRequest":
        read(detail.value, (number, reader) => {
          if (number !== 1) return false;
          const [name, description] = strings(reader.bytes());
          found.fields[name!] = description!;
          return true;
        });
        break;
      case "google.rpc.ResourceInfo":
        found.resource = strings(detail.value)[1]!;
        break;
      case "google.rpc.RetryInfo":
        read(detail.value, (number, reader) => {
          if (number !== 1) return false;
          found.retryAfter = span(reader.bytes());
          return true;
        });
        break;
    }
  }
  return found;
}

/** Calls take for each field of a message, and skips those for which it returns false. */
function read(message: Uint8Array, take: (number: number, reader: BinaryReader) => boolean): void {
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [number, wireType] = reader.tag();
    if (!take(number, reader)) reader.skip(wireType, number);
  }
}

/** Returns the first two fields of a message, which are strings. */
function strings(message: Uint8Array): string[] {
  const found = ["", ""];
  read(message, (number, reader) => {
    if (number > 2) return false;
    found[number - 1] = reader.string();
    return true;
  });
  return found;
}

/** Returns a google.protobuf.Duration in milliseconds, rounded up. */
function span(message: Uint8Array): number {
  let ms = 0;
  read(message, (number, reader) => {
    if (number === 1) ms += Number(reader.int64()) * 1000;
    else if (number === 2) ms += reader.int32() / 1e6;
    else return false;
    return true;
  });
  return Math.ceil(ms);
}
