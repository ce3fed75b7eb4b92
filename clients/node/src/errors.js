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

/** Ends a run as skipped: there is nothing to do this time. It is no failure. */
export class Skip extends Error {
  /**
   * @param {string} reason
   * @param {ErrorOptions} [options]
   */
  constructor(reason, options) {
    super(reason, options);
    this.name = "Skip";
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

/** A task, a database or a program that a call cannot work with. `code` says which kind of error it is. */
export class DatabaseError extends Error {
  /**
   * @param {"exists" | "unknown" | "paused" | "invalid" | "refused" | "no_database" | "no_module" | "no_program" | "failed"} code
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(code, message, options) {
    super(message, options);
    this.name = "DatabaseError";
    this.code = code;
  }
}

/** The milliseconds of the units that duly reads, by their names. */
const UNITS = /** @type {Record<string, number>} */ (
  Object.fromEntries(
    /** @type {[number, string][]} */ ([
      [1, "ms msec millis"], [1000, "s sec secs second seconds"], [60_000, "m min mins minute minutes"],
      [3_600_000, "h hr hrs hour hours"], [86_400_000, "d day days"], [604_800_000, "w wk wks week weeks"],
      [2_630_016_000, "month months"], [31_557_600_000, "y yr yrs year years"],
    ]).flatMap(([length, names]) => names.split(" ").map((name) => [name, length])),
  )
);
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
