"""The request of a start, as it was typed: a recipe, its machines and its keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stationmaster.domain.catalogue.models import LanguageModel


@dataclass(frozen=True)
class StartRun:
    """Start training; `nodes` and `instance_type` are None where the recipe's default applies."""

    recipe: str
    nodes: int | None = None
    instance_type: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    model: LanguageModel | None = None
    """What the hub said of hf:ORG/MODEL; None for a recipe of the catalogue."""

    @property
    def words(self) -> str:
        """The request as it could be typed after /train, each value once."""
        words = [self.recipe]
        if self.nodes is not None:
            words.append(f"nodes={self.nodes}")
        if self.instance_type is not None:
            words.append(f"instance={self.instance_type}")
        return " ".join([*words, *(f"{key}={value}" for key, value in self.overrides.items())])

    def changed(self, words: str) -> StartRun:
        """The same request with the key=value words of a plan's suggestion in place of its own."""
        values = dict(word.split("=", 1) for word in words.split())
        nodes, instance_type = values.pop("nodes", None), values.pop("instance", None)
        return replace(
            self,
            nodes=int(nodes) if nodes else self.nodes,
            instance_type=instance_type or self.instance_type,
            overrides=self.overrides | values,
        )
