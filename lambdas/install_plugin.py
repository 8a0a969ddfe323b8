"""Lambda function install-plugin: payload {run_id, plugin}."""

from stationmaster.steps.install_plugin import install_plugin

from lambdas.step import step_handler

handler = step_handler(install_plugin, "plugin")
