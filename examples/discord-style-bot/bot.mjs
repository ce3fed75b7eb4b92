// A bot whose library owns the process. Reminders are tasks of duly, its child.
import { DatabaseError, start } from "duly";

import { Gateway } from "./gateway.mjs";

const gateway = new Gateway();

const duly = await start({
  db: process.argv[2] ?? "bot.db",
  handlers: {
    // Once, however often the run is retried. A post of which nobody knows whether it was sent is not repeated.
    remind: (run) => run.effect("post", () => gateway.post(run.payload.to, run.payload.text)),
  },
  concurrency: 4,
  log: process.env.BOT_LOG === "1" ? "inherit" : "ignore",
  onExit: ({ reason, delayMs }) => console.error(`duly has ended (${reason}); again in ${delayMs} ms`),
});
process.once("SIGTERM", () => duly.stop().then(() => process.exit()));

async function onMessage(text) {
  const [command, ...words] = text.split(" ");
  if (command === "remind") {
    const [to, delay, ...rest] = words;
    const name = `remind/${to}/${rest.join("-")}`;
    try {
      const task = await duly.add({ name, handler: "remind", payload: { to, text: rest.join(" ") }, in: delay });
      await gateway.post(to, `I will remind you at ${task.schedule_value}`);
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof DatabaseError)) throw error;
      await gateway.post(to, `no: ${error.message}`);
    }
  } else if (command === "list") {
    for (const task of await duly.list()) await gateway.post("list", `${task.name} ${task.status} ${task.next_run ?? "-"}`);
  } else if (command === "forget") {
    await duly.remove(words[0]).catch((error) => gateway.post("forget", `no: ${error.message}`));
  }
}

await gateway.run(onMessage);
await duly.stop();
