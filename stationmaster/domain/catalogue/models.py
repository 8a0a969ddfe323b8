"""The shapes of models. Pure data and arithmetic.

`LanguageModel` covers decoder-only transformers of the Llama line (Llama, Mistral, Mixtral) by
their published configurations, and any causal language model of the Hugging Face hub by its own
configuration. `ImageModel` covers the two image classifiers.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool

from stationmaster.domain.frozen import Frozen

MAX_PARAMETERS: Final = 10**14
# A published configuration may say anything: what a model is made of is finite and positive.
Size = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Number = Annotated[int, Field(strict=True, ge=0, le=10**6)]
Factor = Annotated[float, Field(strict=True, gt=0, le=1e12)]


PLANNED_ONLY: Final = frozenset(
    {
        "attention_layers",
        "fused_attention",
        "fp32_softmax",
        "scan_bytes",
        "capped_logits",
        "lookup_size",
    }
)
"""The fields of a language model that only the plan reads: they decide nothing of its weights."""


class RopeScaling(Frozen):
    """Llama 3's stretching of rotary embeddings beyond the context of pre-training."""

    factor: Factor
    low_freq_factor: Factor = 1.0
    high_freq_factor: Factor = 4.0
    original_context_length: Size = 8192


class LanguageModel(Frozen):
    """A decoder-only transformer, with the field names of published configurations."""

    family: Literal["llama", "mistral", "mixtral", "hub"]
    """The architecture; `hub`: whatever the repository's own configuration says."""
    repository: str = ""
    """The repository of the published weights and tokenizer, ORG/MODEL on the Hugging Face hub."""
    layers: Size
    hidden_size: Size
    heads: Size
    kv_heads: Size
    own_head_dim: Size | None = None
    """The size of one attention head, where it is not hidden size / heads (Qwen3, Gemma)."""
    ffn_size: Size
    """The inner size of the feed-forward part, or of each expert."""
    vocab_size: Size
    context_length: Annotated[Size, Field(ge=8)]
    rope_theta: Factor = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: Factor = 1e-5
    tied_embeddings: StrictBool = False
    experts: Number = 0
    """The number of experts in each block; 0 for a dense feed-forward part."""
    experts_per_token: Number = 0
    router_aux_loss: float = 0.0
    """The weight of the load-balancing loss that keeps the router from using few experts."""
    attention_layers: Number | None = None
    """The layers that attend, where others have convolutions or a recurrent state; None: all."""
    fused_attention: StrictBool = True
    """Whether attention keeps no number for each pair of tokens."""
    fp32_softmax: StrictBool = True
    """Whether attention that is not fused takes its softmax in fp32."""
    scan_bytes: Annotated[int, Field(strict=True, ge=0, le=10**9)] = 0
    """Of a token: what a layer of Mamba keeps that has no kernel of its own."""
    capped_logits: StrictBool = False
    """Whether the head's output goes through a tanh, which keeps it once more (Gemma 2 and 4)."""
    lookup_size: Number = 0
    """The size of further embeddings of each layer, with as many entries as the vocabulary (Gemma
    3n and 4): nothing is multiplied with them."""
    published_parameters: Annotated[int, Field(ge=1, le=MAX_PARAMETERS)] | None = None
    """The repository's own count, for architectures that the closed form does not cover."""

    @property
    def head_dim(self) -> int:
        """The size of one attention head."""
        return self.own_head_dim or self.hidden_size // self.heads

    @property
    def attention_width(self) -> int:
        """The size of all heads together: what attention reads its queries from, and returns."""
        return self.heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """The trainable parameters of embeddings, blocks (attention, SwiGLU, norms), final norm,
        head.
        """
        if self.published_parameters is not None:
            return self.published_parameters
        return self._count(self.experts)

    @property
    def num_active_parameters(self) -> int:
        """The parameters that one token passes through: all, or with its own experts only."""
        if not self.experts:
            return self.num_parameters
        return self._count(self.experts_per_token)

    @property
    def expert_parameters(self) -> int:
        """The parameters of all experts of all blocks, without the routers."""
        return self.layers * self.experts * 3 * self.hidden_size * self.ffn_size

    @property
    def lookup_parameters(self) -> int:
        """The parameters of the layers' own embeddings."""
        return self.layers * self.vocab_size * self.lookup_size

    @property
    def num_attending(self) -> int:
        """The number of layers that attend."""
        return self.layers if self.attention_layers is None else self.attention_layers

    def _count(self, experts: int) -> int:
        # A convolution or a recurrent layer counts like attention with as many keys as queries.
        others = self.layers - self.num_attending
        keys = self.kv_heads * self.num_attending + self.heads * others
        feed_forward = 3 * self.hidden_size * self.ffn_size
        if not self.num_attending:  # Mamba 2: one matrix into its states, of twice their width
            keys, feed_forward = self.heads * others // 2, 0
        mixing = 2 * self.hidden_size * self.head_dim * (self.heads * self.layers + keys)
        if self.experts:
            feed_forward = experts * feed_forward + self.experts * self.hidden_size  # and router
        block = feed_forward + 2 * self.hidden_size
        embedding = self.vocab_size * self.hidden_size
        head = 0 if self.tied_embeddings else embedding
        blocks = mixing + self.layers * block + self.lookup_parameters
        return embedding + blocks + self.hidden_size + head


class ImageModel(Frozen):
    """An image classifier: a ResNet by its stages, or an EfficientNet by its two coefficients."""

    architecture: Literal["resnet", "efficientnet"]
    stem_width: int = 64
    stage_widths: tuple[int, ...] = ()
    stage_depths: tuple[int, ...] = ()
    width_coefficient: float = 1.0
    depth_coefficient: float = 1.0
    dropout: float = 0.0
    num_classes: int = 1000
    native_image_size: int
    """The pixels a side with which the published accuracy was reached."""
    num_parameters: int
    """The trainable parameters; a test compares them with the built model."""
    forward_gflops: float
    """The GFLOP of one image at the native size, a multiply-add counted as two."""
    kept_elements_per_pixel: float
    """The numbers that a forward pass keeps for backward, for each pixel of its input; traced, and
    compared with the built model by a test."""

    @property
    def num_active_parameters(self) -> int:
        return self.num_parameters
