import { randomBytes } from "node:crypto";

import type { Duration } from "@bufbuild/protobuf/wkt";
import { durationFromMs, timestampFromDate, type Timestamp } from "@bufbuild/protobuf/wkt";

import { Invalid } from "./errors.js";

/** A time span: milliseconds, or text such as "90s", "1h30m" or "500ms". */
export type Span = number | string;

/** A 64-bit number. The client returns each as a bigint, and accepts a number if it is exact. */
export type Long = bigint | number;

const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns a time span in milliseconds. */
export function milliseconds(span: Span): number {
  if (typeof span === "number") {
    if (Number.isFinite(span) && span >= 0) return span;
  } else if (/^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(span)) {
    const parts = [...span.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)];
    return parts.reduce((sum, [, count, unit]) => sum + Number(count) * units[unit!]!, 0);
  }
  throw new Invalid(`${JSON.stringify(span)} is no time span: write milliseconds, or text such as "90s" or "1h30m"`);
}

/** Returns a time span as the API has it; undefined stays undefined. */
export function duration(span: Span | undefined): Duration | undefined {
  return span === undefined ? undefined : durationFromMs(Math.round(milliseconds(span)));
}

/** Returns a point in time as the API has it: a Date, or a time span from now on. */
export function timestamp(at: Date | Span | undefined): Timestamp | undefined {
  if (at === undefined) return undefined;
  return timestampFromDate(at instanceof Date ? at : new Date(Date.now() + milliseconds(at)));
}

/** Returns a 64-bit number as a bigint. It throws Invalid for a number that is not exact. */
export function long(n: Long): bigint {
  if (typeof n === "number" && !Number.isSafeInteger(n)) {
    throw new Invalid(`${n} is not an exact whole number: pass a bigint`);
  }
  return BigInt(n);
}

/**
 * Returns a value as JSON text; undefined as no text. A bigint within it becomes a number if that is
 * exact, and otherwise its digits as a string.
 */
export function json(value: unknown): string {
  if (value === undefined) return "";
  const text = JSON.stringify(value, (_, v: unknown) => (typeof v === "bigint" ? exact(v, String) : v));
  if (text === undefined) throw new Invalid(`a ${typeof value} is no JSON value`);
  return text;
}

/** Returns a bigint as a number if that is exact, and otherwise what the given function makes of it. */
export function exact<T>(n: bigint, otherwise: (n: bigint) => T): number | T {
  const rounded = Number(n);
  return Number.isSafeInteger(rounded) ? rounded : otherwise(n);
}

/** Returns the JSON value of a text; undefined for no text, and the text itself if it is no JSON. */
export function parsed(text: string): unknown {
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * Returns a new request id of version 7: 48 bits of time, then random bits. The broker's index of
 * request ids grows at its end with such ids.
 */
export function requestId(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = (bytes[6]! & 0x0f) | 0x70;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = bytes.toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
