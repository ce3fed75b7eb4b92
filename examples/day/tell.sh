# Tells the operator: its standard input is the run that is dead, or the occurrences for which nothing ran, as JSON.
set -eu
ended=$(cat)
# A value of the JSON: a number, or a text with the quotes in it escaped.
part() { echo "$ended" | sed -nE -e "s/.*\"$1\":\"(([^\"\\\\]|\\\\.)*)\".*/\1/p" -e "s/.*\"$1\":([0-9]+).*/\1/p"; }
case $(part status) in
    missed) text="no pictures: $(part count) from $(part from) to $(part to)" ;;
    *) text="the picture of $(part scheduled_for) failed: $(part error)" ;;
esac
# A bot would send it: ... | mail -s "the bot" anna@example.org
echo "$text" >> messages
