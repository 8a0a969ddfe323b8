"""The Slack app: listeners for what people type and click, and the notifier that posts to them.

`lambda_handler` and `notifier_handler` are the deployed entry points. Runs change only through
`stationmaster.commands`; everything that Slack shows is built in `bot.blocks`.
"""
