// The types as an application sees them. It is compiled, and never run: a wrong use must be an error of the compiler.

import { type Application, type Client, type DatabaseErrorCode, type Handler, type Run, DatabaseError, client, start, GiveUp, RetryAfter, add, open, trigger, worker } from "duly";

interface Mail {
  to: string;
}

const mail: Handler<Mail> = async (run) => {
  const to: string = run.payload.to;
  const due: number = run.scheduledFor.getTime() + (run.deadline?.getTime() ?? 0) + run.attempt;
  const id2: string = String(run.run);
  run.log.info(id2);
  run.progress(`to ${to}`);
  run.log.warn(due);
  const sent: number = await run.effect("send", async () => 7, { lookUp: () => undefined });
  const id: { id: string } = await run.effect("other", () => ({ id: run.idempotencyKey }));
  if (run.signal.aborted) throw new RetryAfter("30s", "later", { cause: run.signal.reason });
  if (run.origin === "manual") throw new GiveUp("never");
  return { sent, id };
};

const stopped: Promise<void> = worker({ handlers: { mail, plain: () => 1, typed: (run: Run<Mail>) => run.payload.to }, concurrency: 10 });
void stopped;

const db = open(new URL("file:///srv/agent.db"));
const change: "created" | "replaced" | "unchanged" = add(db, {
  name: "digest", handler: "mail", payload: { to: "anna" }, cron: "0 6 * * *", timeZone: "Europe/Rome", overlap: "buffer_all", onDead: null,
}).change;
add("agent.db", { name: "often", handler: "mail", everySeconds: 1.5, ifAbsent: true, timeoutMs: "10m" });
add("agent.db", { name: "soon", handler: "mail", in: "2h" });
// @ts-expect-error: two schedules
add("agent.db", { name: "both", handler: "mail", in: "2h", now: true });
// @ts-expect-error: `delay` or `in`
add("agent.db", { name: "after", handler: "mail", after: "2h" });
// @ts-expect-error: a Date, a text, or atSeconds
add("agent.db", { name: "number", handler: "mail", at: Date.now() });

add("agent.db", { name: "once", handler: "mail", at: new Date(), replace: true, startsAt: new Date() });
trigger("agent.db", "digest", { payload: [change], key: "order-7" });
db.close();

try {
  trigger(db, "digest");
} catch (error) {
  if (error instanceof DatabaseError) {
    const code: DatabaseErrorCode = error.code;
    console.log(code, error.message);
  }
}

// @ts-expect-error no schedule
add(db, { name: "t", handler: "mail" });
// @ts-expect-error two schedules
add(db, { name: "t", handler: "mail", cron: "@daily", every: "1h" });
// @ts-expect-error no such policy
add(db, { name: "t", handler: "mail", manual: true, overlap: "dance" });
// @ts-expect-error no handlers
worker({ concurrency: 10 });
// @ts-expect-error a payload has this type
const wrong: Handler<Mail> = (run) => run.payload.from;
void wrong;
// @ts-expect-error read-only
const write = (run: Run) => (run.attempt = 2);
void write;

const duly: Client = client("agent.db", { program: "/usr/bin/duly" });
const application: Application = await start({ db: "bot.db", handlers: { mail }, concurrency: 4, onExit: ({ reason, delayMs }) => console.log(reason, delayMs) });
const { status, result } = await application.trigger("digest", { wait: true, payload: { to: "anna" }, signal: AbortSignal.timeout(1000) });
const names: string[] = (await duly.list()).map((task) => task.name);
const last = (await duly.history("digest", { status: "dead", since: new Date(), limit: 1 }))[0].error;
void [status, result, names, last, application.pid];
await application.stop();
