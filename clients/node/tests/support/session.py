"""One connection to SQLite for tests of Node.js without a module for it: a request and its answer are one line of JSON each."""

import json
import sqlite3
import sys

database, requests, answers = sys.argv[1:]
connection = sqlite3.connect(database, isolation_level=None)
connection.row_factory = sqlite3.Row
with open(requests, encoding="utf-8") as reader, open(answers, "w", encoding="utf-8") as writer:
    for line in reader:
        request = json.loads(line)
        try:
            if request["script"]:
                for statement in request["sql"].split(";"):
                    connection.execute(statement)
                answer = {}
            else:
                cursor = connection.execute(request["sql"], request["values"])
                rows = [dict(row) for row in cursor.fetchall()]
                answer = {"rows": rows, "changes": max(cursor.rowcount, 0)}
        except sqlite3.Error as error:
            answer = {"error": str(error)}
        writer.write(json.dumps(answer) + "\n")
        writer.flush()
