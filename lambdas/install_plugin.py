"""Lambda function install-plugin: payload {cluster_id, plugin}."""

from lambdas.step import step_handler
from stationmaster.steps.install_plugin import install_plugin

handler = step_handler(install_plugin, "cluster_id", "plugin")
