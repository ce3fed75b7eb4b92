// First: it takes the streams of the process before other code runs.
import "./streams.js";

export { worker } from "./worker.js";
export { add, trigger } from "./tables.js";
export { Client, client } from "./client.js";
export { start } from "./start.js";
export { open } from "./database.js";
export { DatabaseError, GiveUp, RetryAfter, Skip } from "./errors.js";
