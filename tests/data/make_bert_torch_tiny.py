"""Makes tests/data/bert_torch_tiny.onnx: a 2-layer BERT as torch and transformers export it.

Needs, in an environment of its own: pip install torch==2.13.0 transformers onnx onnxscript numpy
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "pooler_output")


class Plain(torch.nn.Module):
    """BERT with tensors in and out, nothing else, which the TorchScript exporter can trace."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """last_hidden_state and pooler_output."""
        out = self.bert(input_ids, attention_mask, token_type_ids, return_dict=True)
        return out.last_hidden_state, out.pooler_output


def main() -> None:
    """Export the model next to this file."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    model = Plain(BertModel(config)).eval()
    ids = torch.randint(0, config.vocab_size, (2, 16))
    args = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    torch.onnx.export(
        model,
        args,
        str(Path(__file__).with_name("bert_torch_tiny.onnx")),
        input_names=list(INPUTS),
        output_names=list(OUTPUTS),
        dynamic_axes={name: {0: "batch"} for name in INPUTS + OUTPUTS},
        opset_version=14,
        dynamo=False,
    )


if __name__ == "__main__":
    main()
