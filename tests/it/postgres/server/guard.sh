umask 077
folder=$(mktemp -d /tmp/duly-pg.XXXXXX) || exit 1
data=$folder/data log=$folder/log
if "$1/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C -N >"$log" 2>&1 </dev/null &&
    "$1/pg_ctl" -D "$data" -w -t 60 -l "$log" start >>"$log" 2>&1 </dev/null -o "-k $folder -c listen_addresses='' \
        -c fsync=off -c full_page_writes=off -c max_connections=300 -c max_locks_per_transaction=256 -c max_wal_size=256MB $DULY_SERVER_SETTINGS"
then
    echo "$folder"
else
    echo "failed: $(tail -n 5 "$log")"
fi
while read -r line; do
    "$1/pg_ctl" -D "$data" -w -t 60 -l "$log" -m immediate restart >>"$log" 2>&1 </dev/null
    echo "up again: $?"
done
"$1/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1
rm -rf "$folder"
