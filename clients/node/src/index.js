export { worker } from "./worker.js";
export { add, trigger } from "./tables.js";
export { open } from "./database.js";
export { DatabaseError, GiveUp, RetryAfter } from "./errors.js";
