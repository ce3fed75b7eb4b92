// JSON as duly reads it: valid UTF-8 without lone surrogates, at most 1 MiB a line.

/** Longest message in bytes, with its line end. */
export const MAX_LINE_BYTES = 1024 * 1024;

/** Longest text of an error, of progress or of a line of log, in UTF-16 units. JSON takes at most six bytes for one. */
const MAX_TEXT = 64 * 1024;

/** Most errors of an AggregateError that are described. */
const MAX_INNER = 8;

/**
 * Returns a value as JSON, or undefined if JSON has nothing for it. Throws a TypeError if it has a cycle or a BigInt.
 *
 * JSON.stringify writes a lone surrogate as an escape, which no parser that returns UTF-8 accepts. It becomes U+FFFD.
 * @param {unknown} value
 * @returns {string | undefined}
 */
export function encode(value) {
  const json = JSON.stringify(value);
  if (json === undefined || !json.includes("\\ud")) return json;
  return json.replace(/\\(?:\\|ud[89a-f][0-9a-f]{2})/g, (escape) => (escape === "\\\\" ? escape : "\\ufffd"));
}

/**
 * Returns a text as JSON, shortened to its first 64 Ki units.
 * @param {unknown} text
 * @returns {string}
 */
export function encodeText(text) {
  const whole = String(text);
  return /** @type {string} */ (encode(whole.length > MAX_TEXT ? `${whole.slice(0, MAX_TEXT)} [shortened]` : whole));
}

/**
 * Whether a line is longer than a message may be. `line` ends with its line end.
 * @param {string} line
 */
export function isTooLong(line) {
  // A UTF-16 unit takes at most three bytes.
  return line.length * 3 > MAX_LINE_BYTES && Buffer.byteLength(line) > MAX_LINE_BYTES;
}

/**
 * Describes a thrown value, with its causes.
 * @param {unknown} thrown
 * @returns {string}
 */
export function describe(thrown) {
  try {
    return described(thrown);
  } catch {
    return "the handler threw what cannot be described";
  }
}

/** @param {unknown} thrown */
function described(thrown) {
  const parts = [];
  let error = thrown;
  for (let depth = 0; depth < 8 && error !== undefined && error !== null; depth += 1) {
    if (!(error instanceof Error)) {
      parts.push(typeof error === "string" ? error : plain(error));
      break;
    }
    const named = ["Error", "GiveUp", "RetryAfter", "Skip"].includes(error.name);
    const text = named && error.message !== "" ? error.message : `${error.name}: ${error.message}`;
    parts.push(error instanceof AggregateError ? `${text} (${inner(error)})` : text);
    error = error.cause;
  }
  return parts.join(": ") || `the handler threw ${String(thrown)}`;
}

/** @param {AggregateError} error */
function inner({ errors }) {
  const shown = [...errors].slice(0, MAX_INNER).map(describe);
  return errors.length > shown.length ? `${shown.join("; ")}; and ${errors.length - shown.length} more` : shown.join("; ");
}

/** @param {unknown} value */
function plain(value) {
  try {
    return encode(value) ?? String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}
