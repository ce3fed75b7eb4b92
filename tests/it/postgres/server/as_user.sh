cd /
[ "$(id -u)" = 0 ] || exec sh -c "$2" guard "$1"
user=postgres
id "$user" >/dev/null 2>&1 || user=nobody
if command -v setpriv >/dev/null; then
    exec setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups sh -c "$2" guard "$1"
fi
exec runuser -u "$user" -- sh -c "$2" guard "$1"
