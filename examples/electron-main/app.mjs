// Electron's `app` and a window. Under plain Node.js, as in the test: what `main.mjs` needs of them, with the terminal as the window.
import process from "node:process";

export let app, show;

if (process.versions.electron !== undefined) {
  const electron = await import("electron");
  app = electron.app;
  let window;
  app.whenReady().then(() => (window = new electron.BrowserWindow({ width: 480, height: 120 })));
  app.on("window-all-closed", () => app.quit());
  show = (text) => {
    console.log(text);
    if (window?.isDestroyed() === false) window.loadURL(`data:text/plain,${encodeURIComponent(text)}`);
  };
} else {
  app = {
    whenReady: async () => {},
    getPath: () => process.env.APP_DATA ?? ".",
    on: (name, act) => name === "before-quit" && process.once("SIGTERM", () => act({ preventDefault() {} })),
    exit: process.exit,
  };
  show = console.log;
}
