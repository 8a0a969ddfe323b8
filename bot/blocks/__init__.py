"""From domain values to Block Kit: pure functions, no Slack client, no clock.

card is the one live message of a run, thread the events below it, receipt the end of its teardown,
answers what a command replies to one person.
"""
