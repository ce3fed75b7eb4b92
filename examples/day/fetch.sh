# Fetches the picture of an hour. FEED is the command that prints it; what it says beside that is kept in pictures/feed.log.
set -eu
mkdir -p pictures
name=$(echo "$DULY_SCHEDULED_FOR" | cut -c1-13).txt
${FEED:-date -u} > "pictures/$DULY_RUN_ID.part" 2>> pictures/feed.log || { code=$?; tail -n 1 pictures/feed.log >&2; exit $code; }
mv "pictures/$DULY_RUN_ID.part" "pictures/$name"
# post.sh finds the name at the end of this output.
echo "picture: $name"
