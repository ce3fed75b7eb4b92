/** Ends a run as dead: it is not retried. */
export class GiveUp extends Error {
  /**
   * @param {string} reason
   * @param {ErrorOptions} [options]
   */
  constructor(reason, options) {
    super(reason, options);
    this.name = "GiveUp";
  }
}

/** Fails an attempt, and sets when the next one begins. */
export class RetryAfter extends Error {
  /**
   * @param {number | string} delay milliseconds, or a text such as "30s" or "1h 30m"
   * @param {string} [reason]
   * @param {ErrorOptions} [options]
   */
  constructor(delay, reason = "the handler asked for a later attempt", options) {
    super(reason, options);
    this.name = "RetryAfter";
    /** The delay in milliseconds. */
    this.delayMs = milliseconds(delay);
  }
}

/** A task or a database that `add` or `trigger` cannot work with. `code` says which kind of error it is. */
export class DatabaseError extends Error {
  /**
   * @param {"exists" | "unknown" | "paused" | "invalid" | "refused" | "no_database"} code
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(code, message, options) {
    super(message, options);
    this.name = "DatabaseError";
    this.code = code;
  }
}

/** @type {Record<string, number>} */
const UNITS = {
  ms: 1, s: 1000, sec: 1000, m: 60_000, min: 60_000, h: 3_600_000, hour: 3_600_000, d: 86_400_000, day: 86_400_000, w: 604_800_000,
};
/** The maximum of duly: ten years. A longer duration in a message is an error, and ends the worker. */
const LONGEST = 315_576_000_000;

/**
 * Returns the milliseconds of a duration.
 * @param {number | string} duration
 */
export function milliseconds(duration) {
  const refuse = () => {
    const found = typeof duration === "string" ? JSON.stringify(duration) : String(duration);
    return new TypeError(`expected a duration of 1ms to 10 years, such as "30s", "1h 30m" or 30000 for milliseconds, found ${found}`);
  };
  let total = duration;
  if (typeof duration === "string") {
    if (!/^\s*(\d+(\.\d+)?\s*[a-z]+\s*)+$/.test(duration)) throw refuse();
    total = 0;
    for (const [, count, unit] of duration.matchAll(/(\d+(?:\.\d+)?)\s*([a-z]+)/g)) {
      if (!Object.hasOwn(UNITS, unit)) throw refuse();
      total += Number(count) * UNITS[unit];
    }
    // 1.1s is 1100.0000000000002 here.
    total = Math.round(total * 1000) / 1000;
  }
  if (typeof total !== "number" || !Number.isInteger(total) || total < 1 || total > LONGEST) throw refuse();
  return total;
}
