// What duly may send. A message that this page does not allow is an error, and ends the worker.

const STATES = ["begin", "done", "in_doubt", "refused", "stored", "undone"];

/** @type {Record<string, Record<string, (value: unknown) => boolean>>} */
const MESSAGES = {
  welcome: { protocol: isInteger, worker: isText, copy: isInteger, database: isText },
  run: {
    run: isId, attempt: isInteger, task: isText, handler: isText, payload: isPresent, scheduled_for: isTime, origin: isText,
    idempotency_key: isText, deadline: (value) => value === null || isTime(value),
  },
  cancel: { run: isId, attempt: isInteger, reason: (value) => value === "asked" || value === "timeout" || value === "shutdown" },
  effect: { run: isId, attempt: isInteger, key: isText, state: (value) => STATES.includes(/** @type {string} */ (value)) },
  ping: {},
  pong: {},
  stop: { deadline: isTime },
  error: { error: isText },
};

/**
 * Parses a line, and checks its keys. Throws an error that says what is wrong.
 * @param {string} line
 * @returns {any}
 */
export function parseMessage(line) {
  let message;
  try {
    message = JSON.parse(line);
  } catch {
    throw new Error(`a line that is no JSON: ${excerpt(line)}`);
  }
  if (typeof message !== "object" || message === null || Array.isArray(message)) {
    throw new Error(`a line that is no JSON object: ${excerpt(line)}`);
  }
  if (typeof message.type !== "string" || !Object.hasOwn(MESSAGES, message.type)) {
    throw new Error(`a message of an unknown type: ${excerpt(line)}`);
  }
  // Beyond 2^53 the id is a text: a number would be that of another run.
  if (typeof message.run === "number" && !Number.isSafeInteger(message.run)) message.run = exact(line, message.run);
  const keys = MESSAGES[message.type];
  for (const key in keys) {
    if (!keys[key](message[key])) throw new Error(`a message "${message.type}" whose "${key}" is missing or wrong: ${excerpt(line)}`);
  }
  return message;
}

/** @param {string} line */
function excerpt(line) {
  return JSON.stringify(line.length > 200 ? `${line.slice(0, 200)}..` : line);
}

/**
 * Returns the digits of the id of a run, which its number cannot hold.
 * @param {string} line
 * @param {number} rounded
 */
function exact(line, rounded) {
  for (const [, digits] of line.matchAll(/"run"\s*:\s*(\d+)/g)) {
    if (Number(digits) === rounded) return digits;
  }
  return rounded;
}

/** @param {unknown} value */
function isId(value) {
  return isInteger(value) || (typeof value === "string" && /^\d{16,19}$/.test(value));
}

/** @param {unknown} value */
function isInteger(value) {
  return Number.isSafeInteger(value);
}

/** @param {unknown} value */
function isText(value) {
  return typeof value === "string";
}

/** @param {unknown} value */
function isTime(value) {
  return typeof value === "string" && !Number.isNaN(Date.parse(value));
}

/** @param {unknown} value */
function isPresent(value) {
  return value !== undefined;
}
