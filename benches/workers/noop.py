"""A worker whose handler does nothing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "clients/python/src"))

import duly  # noqa: E402

duly.run_worker({"noop": lambda run: None}, concurrency=500)
