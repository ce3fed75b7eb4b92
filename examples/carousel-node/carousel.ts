// A bot that posts a carousel of five pictures to each of its chats three times a day: each picture once, even if the bot or the
// scheduler is killed. A worker of duly, in TypeScript; README.md says how to run it.

import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

import { add, open, type Run, worker } from "duly";

const CHATS = ["family", "climbing-club"];
const PICTURES = ["sunrise", "summit", "lake", "hut", "descent"];

// --fast: a day of twenty seconds, with a post at 0, 7 and 14.
const FAST = process.argv.includes("--fast");
const CRON = FAST ? "0,7,14,20,27,34,40,47,54 * * * * *" : "0 9,13,18 * * *";
/** How long it takes to draw a picture, in milliseconds. */
const MOMENT = FAST ? 200 : 6000;

// The database of duly, which holds a table of this bot, too.
const db = open(process.env.DULY_DB ?? "carousel.db");
// The chat service of this example. It accepts a picture twice, and finds it by the key of the client.
db.exec("CREATE TABLE IF NOT EXISTS posts (id INTEGER PRIMARY KEY, key TEXT NOT NULL, chat TEXT NOT NULL, picture TEXT NOT NULL)");

for (const chat of CHATS) {
  // replace, because the code defines the tasks: an equal task changes nothing, an edited one takes effect.
  add(db, {
    name: `carousel:${chat}`,
    handler: "carousel",
    payload: { chat },
    cron: CRON,
    timeZone: "Europe/Rome",
    // One message per chat at a time. Other tasks for the same chat can share the key.
    concurrencyKey: `chat:${chat}`,
    // A slow post delays the next one; by default the next one would be skipped, with a row.
    overlap: "buffer_all",
    backoffMs: MOMENT,
    replace: true,
  });
}

await worker({ handlers: { carousel }, concurrency: CHATS.length });
db.close();

/** Posts the pictures. An attempt that was cut short is continued by the next one where it ended. */
async function carousel(run: Run<{ chat: string }>) {
  const { chat } = run.payload;
  const posted: number[] = [];
  for (const [at, picture] of PICTURES.entries()) {
    run.progress(`picture ${at + 1} of ${PICTURES.length}`);
    const key = `${run.idempotencyKey}/${picture}`;
    posted.push(
      await run.effect(
        picture,
        async () => {
          // Aborted when the run is cancelled or duly shuts down: it fails, nothing was posted, and the next attempt posts it.
          await sleep(MOMENT, undefined, { signal: run.signal });
          return post(key, chat, picture);
        },
        // The bot may have died between the post and its record. The service knows.
        { lookUp: () => find(key) },
      ),
    );
  }
  console.log(`${run.idempotencyKey}: posted ${posted.length} pictures, attempt ${run.attempt}`);
  return { posted };
}

/** Returns the id of the message. */
function post(key: string, chat: string, picture: string): number {
  return db.prepare("INSERT INTO posts (key, chat, picture) VALUES (?, ?, ?) RETURNING id").get(key, chat, picture).id;
}

/** Returns the id of the message with a key, if there is one. */
function find(key: string): number | undefined {
  return db.prepare("SELECT id FROM posts WHERE key = ?").get(key)?.id;
}
