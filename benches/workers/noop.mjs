// A worker whose handler does nothing.
import { worker } from "../../clients/node/src/index.js";

worker({ handlers: { noop: () => {} }, concurrency: 500 });
