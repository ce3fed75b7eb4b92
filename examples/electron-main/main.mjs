// The main process of a desktop application. duly is its child: its tasks run in this process, also those that came due while it was closed.
import { join } from "node:path";

import { start } from "duly";

import { app, show } from "./app.mjs";

// Not `await app.whenReady()`: Electron is ready only after this module has been loaded.
app.whenReady().then(async () => {
  const duly = await start({
    db: join(app.getPath("userData"), "tasks.db"),
    handlers: {
      sync: async (run) => {
        show(`synchronised for ${run.scheduledFor.toISOString()}`);
        return process.pid;
      },
    },
    log: "ignore",
    onExit: ({ reason, delayMs }) => show(`duly has ended (${reason}); again in ${delayMs} ms`),
  });
  // At every start: adding the same task again changes nothing.
  await duly.add({ name: "sync", handler: "sync", every: "1s" });

  // Runs may finish, and no process is left.
  app.on("before-quit", async (event) => {
    event.preventDefault();
    await duly.stop();
    app.exit();
  });
  show(`ready, with duly as process ${duly.pid}`);
});
