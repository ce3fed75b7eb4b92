// The schedules of a task: what the client can check is an error at the call. The program has the last word.

import { milliseconds } from "./errors.js";
import { isZone } from "./zones.js";

/** The options that name a schedule, each with its schedule_type. Those for durations and times also exist as `everySeconds` and so on. */
const TYPES = /** @type {const} */ ({ cron: "cron", on: "calendar", every: "interval", delay: "delay", at: "once", in: "once", now: "once", manual: "manual" });
const IN_SECONDS = ["every", "delay", "at", "in"];

export const SCHEDULE_OPTIONS = [...Object.keys(TYPES), ...IN_SECONDS.map((option) => `${option}Seconds`)];

const NICKNAMES = /^@(yearly|annually|monthly|weekly|daily|midnight|hourly)$/i;
/** Of each field of an expression: its name, its least and its greatest number, and its words. */
const FIELDS = /** @type {[string, number, number, RegExp][]} */ ([
  ["second", 0, 59, /^$/],
  ["minute", 0, 59, /^$/],
  ["hour", 0, 23, /^$/],
  ["day of month", 1, 31, /^(L|LW|W)$/i],
  ["month", 1, 12, /^(JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)$/i],
  ["day of week", 0, 7, /^(SUN|MON|TUE|WED|THU|FRI|SAT|L)$/i],
]);
const TIME = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?$/;
const EARLIEST = 1_000_000_000_000;
const LATEST = 64_060_588_800_000;

/**
 * Returns type and value of the one schedule that a task names. `isMoving`: the value is the time of the call, and no part of the
 * definition.
 * @param {string} request
 * @param {any} task
 * @returns {{ type: string, value: string, isMoving: boolean }}
 */
export function schedule(request, task) {
  if (task.after !== undefined) {
    const meaning = "`in` runs once, this long from now; `delay` runs again, this long after each end";
    throw new TypeError(`cannot ${request}: after is not an option: ${meaning}`);
  }
  const named = SCHEDULE_OPTIONS.filter((option) => task[option] !== undefined && task[option] !== false);
  if (named.length !== 1) {
    const found = named.length === 0 ? "none" : named.join(" and ");
    throw new TypeError(`cannot ${request}: expected one of cron, on, every, delay, at, in, now and manual, found ${found}`);
  }
  const [option] = named;
  const given = task[option];
  const refuse = (/** @type {string} */ expected) => new TypeError(`cannot ${request}: ${option}: expected ${expected}, found ${shown(given)}`);
  const isSeconds = option.endsWith("Seconds");
  const kind = /** @type {keyof typeof TYPES} */ (isSeconds ? option.slice(0, -"Seconds".length) : option);
  const once = (/** @type {number} */ time, isMoving = false) => {
    if (!(time >= EARLIEST && time <= LATEST)) throw refuse("a time between 2001 and 4000");
    return { type: "once", value: new Date(time).toISOString(), isMoving };
  };
  if (kind === "now" || kind === "manual") {
    if (given !== true) throw refuse("true");
    return kind === "now" ? once(Date.now(), true) : { type: TYPES[kind], value: "", isMoving: false };
  }
  if (isSeconds && !(typeof given === "number" && Number.isFinite(given))) throw refuse("a number of seconds");
  if (kind === "at") {
    if (isSeconds) return once(given * 1000);
    if (given instanceof Date) {
      if (Number.isNaN(given.getTime())) throw refuse("a valid Date");
      return once(given.getTime());
    }
    return { type: "once", value: time(given, refuse), isMoving: false };
  }
  if (kind === "cron") {
    checkCron(given, refuse);
    return { type: "cron", value: given, isMoving: false };
  }
  if (kind === "on") {
    // The program knows the grammar.
    if (typeof given !== "string" || !/^\s*every /i.test(given) || given.length > 256) throw refuse('a text such as "every 2 weeks on mon at 09:00"');
    return { type: "calendar", value: given, isMoving: false };
  }
  const length = isSeconds ? `${Math.round(given * 1000)}ms` : given;
  if (typeof length !== "string") throw refuse(`a text with a unit such as "15m"; for a number of seconds, use ${option}Seconds`);
  let span;
  try {
    span = milliseconds(length);
  } catch {
    throw refuse('a duration of 1ms to 10 years, such as "30s" or "1h 30m"');
  }
  return kind === "in" ? once(Date.now() + span, true) : { type: TYPES[kind], value: length, isMoving: false };
}

/**
 * Checks a text as a point in time, and returns it as duly reads it.
 * @param {unknown} text
 * @param {(expected: string) => TypeError} refuse
 */
function time(text, refuse) {
  const expected = 'a Date, or a text such as "2027-03-14T12:00:00Z", or "2027-03-14 12:00" for a local time in timeZone';
  const parts = typeof text === "string" ? TIME.exec(text.trim()) : null;
  if (parts === null) throw refuse(`${expected}${typeof text === "number" ? "; for a number of seconds since 1970, use atSeconds" : ""}`);
  const [, date, clock, seconds = ":00", , offset = ""] = parts;
  const valid = new Date(`${date}T00:00:00Z`);
  if (Number.isNaN(valid.getTime()) || valid.toISOString().slice(0, 10) !== date) throw refuse("a date that exists");
  if (Number.isNaN(Date.parse(`${date}T${clock}${seconds}${offset || "Z"}`))) throw refuse("a time of the day that exists");
  // With an offset duly wants seconds.
  return offset === "" ? parts[0] : `${date}T${clock}${seconds}${offset}`;
}

/**
 * Checks a cron expression: the number of its fields, and the numbers and words in them.
 * @param {unknown} text
 * @param {(expected: string) => TypeError} refuse
 */
function checkCron(text, refuse) {
  const form = 'a cron expression of 5 or 6 fields, such as "0 7 * * mon-fri", or @daily';
  if (typeof text !== "string" || text.length > 256) throw refuse(form);
  const whole = text.trim();
  if (NICKNAMES.test(whole)) return;
  const fields = whole.split(/\s+/);
  if (fields.length !== 5 && fields.length !== 6) throw refuse(form);
  fields.forEach((field, at) => {
    const [name, least, most, words] = FIELDS[at + 6 - fields.length];
    for (const item of field.split(",")) {
      const wrong = () => refuse(`* or ${least}-${most} as ${name}`);
      if (!/^[*0-9a-z]+(-[0-9a-z]+)?(\/\d+|#(\d|L))?$/i.test(item)) throw wrong();
      const [range] = item.split(/[/#]/);
      for (const part of range.match(/\d+|[a-z]+/gi) ?? []) {
        if (/\d/.test(part) ? Number(part) < least || Number(part) > most : !words.test(part)) throw wrong();
      }
    }
  });
}

/**
 * Checks the name of a time zone.
 * @param {string} request
 * @param {unknown} name
 */
export function checkZone(request, name) {
  if (isZone(name)) return;
  throw new TypeError(`cannot ${request}: timeZone: expected an IANA name such as "Europe/Rome" or "UTC", found ${shown(name)}`);
}

/** @param {unknown} value */
export function shown(value) {
  try {
    const text = value instanceof Date ? String(value) : (JSON.stringify(value) ?? String(value));
    return text.length > 80 ? `${text.slice(0, 80)}..` : text;
  } catch {
    return String(value);
  }
}
