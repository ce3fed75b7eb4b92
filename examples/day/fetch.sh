# Fetches the picture of an hour. FEED is the command that prints it.
set -eu
mkdir -p pictures
name=$(echo "$DULY_SCHEDULED_FOR" | cut -c1-13).txt
${FEED:-date -u} > "pictures/$DULY_RUN_ID.part"
mv "pictures/$DULY_RUN_ID.part" "pictures/$name"
# post.sh finds the name at the end of this output.
echo "picture: $name"
