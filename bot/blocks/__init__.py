"""From domain values to Block Kit: pure functions, no Slack client, no clock."""
