"""config.json and generation_config.json of the two models, from the release's layout in config_template.json.

    python configs.py ../../models/tiny-k3 ../../models/tiny-k3-draft
"""
import json
import sys
from pathlib import Path

BASE = 2048  # first special id
SHAPES = {
    "tiny-k3": dict(
        hidden_size=256, num_hidden_layers=6, kda=[1, 2, 4, 5], mla=[3, 6], heads=2, intermediate_size=512,
        q_lora_rank=128, attn_res_block_size=2, num_experts=16, num_experts_per_token=4,
        routed_expert_hidden_size=128, moe_intermediate_size=128),
    "tiny-k3-draft": dict(
        hidden_size=128, num_hidden_layers=2, kda=[1], mla=[2], heads=1, intermediate_size=256,
        q_lora_rank=64, attn_res_block_size=2, num_experts=4, num_experts_per_token=2,
        routed_expert_hidden_size=64, moe_intermediate_size=64),
}


def write(folder: Path) -> None:
    shape = dict(SHAPES[folder.name])
    config = json.loads((Path(__file__).parent / "config_template.json").read_text())
    text, linear = config["text_config"], config["text_config"]["linear_attn_config"]
    ids = {"bos_token_id": BASE, "eos_token_id": BASE + 2, "pad_token_id": BASE + 255}
    config.update(ids, media_placeholder_token_id=BASE + 21)
    linear.update(kda_layers=shape.pop("kda"), full_attn_layers=shape.pop("mla"), num_heads=shape["heads"])
    heads = shape.pop("heads")
    text.update(shape, **ids, num_attention_heads=heads, num_key_value_heads=heads, vocab_size=BASE + 256)
    config["vision_config"]["text_hidden_size"] = shape["hidden_size"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {**ids, "eos_token_id": [BASE + 2, BASE + 1], "do_sample": True, "temperature": 1.0, "top_p": 0.95,
                  "transformers_version": text["transformers_version"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write(Path(argument))
