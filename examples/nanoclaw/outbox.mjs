// Messages to chats. The connections to WhatsApp and Telegram belong to NanoClaw's own process, which sends each file that it finds in
// the folders of its agents.

import { createHash } from "node:crypto";
import { mkdir, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";

/**
 * Hands a message to NanoClaw. The file appears complete, and with one name for all attempts of a run.
 * @param {string} folder NanoClaw's folder `data/ipc`
 * @param {import("./runner.mjs").Task} task
 * @param {string} text
 * @param {string} key the idempotency key of the run
 * @returns {Promise<string>} the name of the message
 */
export async function send(folder, task, text, key) {
  const messages = join(folder, task.group_folder, "messages");
  await mkdir(messages, { recursive: true });
  const name = `duly-${createHash("sha256").update(key).digest("hex").slice(0, 24)}.json`;
  const message = { type: "message", chatJid: task.chat_jid, text, timestamp: new Date().toISOString() };
  await writeFile(join(messages, `${name}.new`), JSON.stringify(message));
  await rename(join(messages, `${name}.new`), join(messages, name));
  return name;
}
