# For `duly run --alert-command`: begins and ends of what is wrong, with or without a task that could tell.
echo "$DULY_ALARM_KIND $DULY_ALARM_STATE: $DULY_ALARM_TEXT" >> alarms
