# The arguments of duly, in an order in which each command has something to do.
add daily --cron '0 7 * * *' --tz Europe/Rome --on-dead alarm -- true
add daily --cron '0 7 * * *' --tz Europe/Rome --on-dead alarm -- true
add daily --cron '0 8 * * *' -- true
add daily --cron '0 8 * * *' --replace -- true
add alarm --manual -- cat
add hello --now -- echo hello
add fails --now --max-attempts 1 -- sh -c 'echo no >&2; exit 3'
add other --manual --handler mail --payload '{"b": 1, "a": [true, null, "\u00e9"]}'
add broken --cron '61 * * * *' -- true
list
list --names
list --handler mail
show daily
show missing
status
check
run --until-idle --quiet
list
history
history hello
history --status dead
logs hello
logs fails
check
trigger daily --key k1 --payload '{"x": 1}'
trigger daily --key k1 --payload '{"x":1}'
trigger daily --key k1 --payload '{"x": 2}'
trigger missing
pause daily
resume daily
cancel daily
retry fails
trigger other
limit set handler:mail --concurrency 1
limit
apply tasks.toml --dry-run
apply tasks.toml
apply tasks.toml
import crontab crontab --partial
next '0 0 * * *' --from 2027-01-01 -n 2
next declared --from 2027-03-27 -n 3
run --until-idle --quiet --tasks tasks.toml
history -n 50
remove other
prune --dry-run
doctor
status
