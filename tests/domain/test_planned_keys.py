"""Keys that machines, models or frameworks do not take, and what plans say of the others."""

from __future__ import annotations

import re

import pytest

from tests.support.typed import refused, start_of

MEGATRON = "megatron-llama3-8b"
TITAN = "torchtitan-llama3.1-8b"
IMAGES = "resnet50 dataset=s3://a-bucket/x"
WHOLE = "mixtral-8x7b context_parallel=1 activation_checkpointing=full"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EIGHT = "divide the 8 experts of mixtral-8x7b; use 2, 4 or 8"
HASH = "expected ORG/MODEL@COMMIT with a commit of 40 hexadecimal"

OF_THE_OWN_TRAINER = (
    ("llama2-7b tensor_parallel=0", "expected 1 or more"),
    ("llama2-7b tensor_parallel=3", "divide the 32 attention heads of llama2-7b; use"),
    ("llama2-70b tensor_parallel=16", "divide the 8 key/value heads .* 2, 4 or 8"),
    (
        "llama2-7b tensor_parallel=8 sequence_length=4092",
        "divide the 4,092 tokens of a sequence of llama2-7b; use 2 or 4",
    ),
    ("llama2-7b tensor_parallel=16", "GPUs of a p4d.24xlarge, 8, .*; use 2, 4 or 8"),
    ("llama2-7b tensor_parallel=2 parallelism=ddp", "parallelism=full or hybrid"),
    ("llama2-7b tensor_parallel=2 compile=true", "use compile=false"),
    ("mixtral-8x7b tensor_parallel=2", "not Mixtral models; leave it out"),
    ("resnet50 preset=smoke tensor_parallel=2", 'has no key "tensor_parallel"'),
    ("tiny-llama tensor_parallel=2", "processes of a m5.2xlarge, 1, .*; use 1"),
    ("llama2-70b nodes=16", "use 128, or tensor_parallel=2, with which 2 share"),
    ("llama2-7b nodes=3 tensor_parallel=2", "over 12 groups of 2 processes; use 60"),
    ("llama2-7b context_parallel=3", "=4,096 does not divide by 6; use context_parallel=2, 4, 8"),
    (
        "llama2-7b context_parallel=2 sequence_length=4098",
        "divide by 4; use context_parallel=1$",
    ),
    (
        "llama2-7b context_parallel=8 sequence_length=4144 tensor_parallel=4",
        "each split over tensor_parallel=4, and .* by 32; use context_parallel=2 or 4$",
    ),
    ("tiny-llama epochs=2 steps=9", "epochs= and steps= both say .*; leave one of them out"),
    ("llama2-7b dataset=c4 epochs=1", "is read as a stream; use steps=, or packed:NAME for"),
    ("llama2-7b dataset=hub:a/b epochs=1", "is read as a stream"),
    ("llama2-7b processes_per_node=9", "a p4d.24xlarge has 8; use 1 to 8$"),
    ("ddp-cpu processes_per_node=3", "global_batch_size=16 does not divide over 6 processes"),
    (f"{MEGATRON} processes_per_node=4", "Megatron-LM starts a process for each GPU; leave it out"),
    ("llama2-7b cpus=4", "0 can be typed; leave it out, because it trains on GPUs"),
    ("ddp-cpu cpus=8", "of the 8 CPUs of a m5.2xlarge 7 can be typed; use 1 to 7"),
    ("llama2-7b efa=5", "training on p4d.24xlarge uses 4 EFA interfaces; use 1 to 4, or off$"),
    ("resnet50 preset=smoke efa=off", "efa=off: training on m5.2xlarge uses no EFA interface"),
    ("llama3.2-1b instance=g4dn.8xlarge precision=fp32 efa=1", "g4dn.8xlarge uses no EFA"),
    ("llama2-7b efa=some", "efa=some is not accepted: expected on, off, or a whole number from 1"),
    ("tiny-llama save_best=loss", "and eval_every=0 makes none; add e.g. eval_every=100"),
    (f"{MEGATRON} epochs=1", 'has no key "epochs"'),
    # It is the recipe's own key: nobody can leave it out.
    ("llama3.1-70b sequence_length=9", "=9 does not .* 8; use context_parallel=1$"),
    ("llama2-7b context_parallel=2 parallelism=ddp", "use parallelism=full or hybrid"),
    (
        "llama2-7b nodes=1 context_parallel=16",
        "over 16 GPUs, and 8, 8 on each node, .* groups; use 2, 4 or 8",
    ),
    ("llama2-7b nodes=3 context_parallel=16", "and 24, 8 on each node, do not come out even"),
    ("tiny-llama nodes=1 context_parallel=2", "2 processes, and 1, 1 on each node, .* use 1"),
    (
        "llama2-7b nodes=2 context_parallel=4 tensor_parallel=8",
        "over 32 GPUs, and 16, 8 on each node, do not .* groups; use 2",
    ),
    (
        "llama2-7b nodes=2:4 context_parallel=16",
        "nodes=2:4 .* GPUs of 3 nodes do not .* use nodes=4",
    ),
    ("mixtral-8x7b nodes=16 context_parallel=1", "use 128, or context_parallel=2, with which 2 s"),
    ("mixtral-8x7b expert_parallel=3", EIGHT),
    ("mixtral-8x7b expert_parallel=16", EIGHT),
    ("mixtral-8x7b expert_parallel=2 parallelism=ddp", "ddp, .* use parallelism=full or hybrid"),
    (
        "mixtral-8x7b nodes=3 expert_parallel=8 global_batch_size=48",
        "leaves 1 expert to 3 of 24 processes, over which .* do not divide; use 1",
    ),
    ("llama2-7b expert_parallel=2", "Mixtral models, not of Llama models; leave"),
    (
        f"{WHOLE} nodes=4 instance=p5.4xlarge expert_parallel=8",
        "no divisor of the 4 processes .*; use 2 or 4",
    ),
    ("mixtral-8x7b nodes=2:4 expert_parallel=8", "not possible: on 3 nodes expert_parallel=8 leav"),
    ("mixtral-8x7b precision=float8", "most of mixtral-8x7b is experts"),
    ("llama2-7b precision=float8 parallelism=ddp", "needs parallelism=full or hybrid"),
    ("llama2-7b precision=float8 tensor_parallel=2", "does not work with tensor_parallel=2"),
    ("llama2-7b precision=float8 sequence_length=1000", "a multiple of 16, not 1000; use 992"),
    ("tiny-llama precision=float8", "tiny-llama trains on CPUs, .* Hopper, .*; use precision=bf16"),
    ("llama2-7b preset=smoke precision=float8", "trains on CPUs"),
    ("llama2-7b precision=fp8", "'auto', 'bf16', 'fp32' or 'float8'"),
    ("llama2-7b precision=fp32 instance=p3.8xlarge", "V100 GPUs, which the .* CUDA 13 .* use p4d"),
    ("llama2-7b instance=p5e.48xlarge", "has no on-demand price in the catalogue.*; use p4d"),
    ("tiny-llama instance=p5e.48xlarge", "has no on-demand price .*; use m5.2xlarge"),
    ("llama2-7b instance=trn2.48xlarge", "has Trainium accelerators .*; use p4d"),
    (f"{IMAGES} parallelism=full", "image classifiers take parallelism=ddp"),
    (f"{IMAGES} activation_checkpointing=full", "take activation_checkpointing=off"),
    (f"{IMAGES} norm_batch_size=60", "60 does not divide global_batch_size=1024; use 32"),
    (
        f"{IMAGES} nodes=4 norm_batch_size=128",
        "makes 8 forward passes .* over 16 processes; use 64",
    ),
    ("tiny-llama nodes=1:2 rendezvous=static", "nodes=1:2 is not possible with rendezvous=static"),
    ("tiny-llama steps=3 warmup_steps=9", "warmup_steps=9 is more than steps=3"),
    ("tiny-llama steps=3 profile=4", "profile=4 is after the last of steps=3; use 3 or less"),
)
OF_FRAMEWORKS = (
    (f"{MEGATRON} preset=smoke", "trains on GPUs only; /train tiny-llama"),
    (f"{MEGATRON} cpu_offload=true", f'^recipe {MEGATRON} has no key "cpu_offload"'),
    (f"{MEGATRON} tensor_parallel=3", "3 does not divide .* 32 attention heads; use 1, 2, 4 or 8$"),
    (f"{MEGATRON} tensor_parallel=16", "16 does not divide the model's 8 key/value groups; use 1"),
    (f"{MEGATRON} pipeline_parallel=5", "5 does not divide .* 32 layers; use 1, 2, 4, 8, 16 or 32"),
    (
        f"{MEGATRON} sequence_length=8190 context_parallel=2",
        "8190 is no multiple of 8, .* with tensor_parallel=2 and context_parallel=2; use 8192",
    ),
    (f"{MEGATRON} eval_every=10 eval_steps=0", "needs batches .* eval_steps=10, or eval_every=0 f"),
    (f"{MEGATRON} warmup_steps=101", "warmup_steps=101 is more than steps=100"),
    (f"{MEGATRON} learning_rate=0.01 min_learning_rate=0.1", "is above learning_rate"),
    ("nemo-llama3-8b min_learning_rate=0.01", "is above learning_rate=1e-05; lower it"),
    (f"{MEGATRON} tensor_parallel=8 instance=g6e.12xlarge", "4 of a g6e.12x.* use 1 or 2 or 4"),
    (
        f"{MEGATRON} pipeline_parallel=4 context_parallel=4",
        "groups of 32 GPUs, which 16 GPUs on nodes=2 are no multiple of; use nodes=4",
    ),
    (
        f"{MEGATRON} global_batch_size=100",
        "100 is no multiple of 8: micro_batch_size=1 on each of 8 data-parallel ranks "
        r"\(16 GPUs in groups of 2\); use 96",
    ),
    (f"{MEGATRON} global_batch_size=20 micro_batch_size=4", "20 is no multiple of 32: .* use 32$"),
    (f"{MEGATRON} micro_batch_size=24", "128 is no multiple of 192: .*, or micro_batch_size=8$"),
    (f"{MEGATRON} nodes=1:2", "Megatron-LM trains on a number of GPUs that is fixed .* nodes=2"),
    (f"{MEGATRON} rendezvous=etcd", "expected 'c10d' or 'static'"),
    (f"{MEGATRON} activation_checkpointing=selective", "expected 'off' or 'full'"),
    (
        f"{TITAN} global_batch_size=20 micro_batch_size=2 tensor_parallel=4",
        "20 is no multiple of 8: .* on each of 4 .*; use 16, or micro_batch_size=1$",
    ),
    (f"{TITAN} sequence_length=8191 tensor_parallel=2", "8191 is no multiple of 2, .*; use 8192"),
    (
        f"{TITAN} sequence_length=8196 tensor_parallel=4",
        "8196 is no multiple of 8, the parts .* computes the loss of; use 8192",
    ),
    (f"{TITAN} sequence_length=9", "9 is no multiple of 8, .*; use 8$"),
    (f"{TITAN} sequence_length=262144", "longer than the 131,072 tokens .* use 131072 or less"),
    (f"{TITAN} grad_clip=0", 'grad_clip="0" is not accepted: expected more than 0'),
    (f"{TITAN} weights=meta-llama/Llama-3.1-8B", 'has no key "weights"'),
    (f"{TITAN} dataset=packed:c4", "dataset=\"packed:c4\" is not accepted: expected 'c4'"),
    (f"{TITAN} tokenizer=org/model", HASH),
    (f"{TITAN} tokenizer=org/model@main", HASH),
    (f"{TITAN} tokenizer=a/b/c@{COMMIT}", HASH),
    (f"{TITAN} backup_every=1h", "backup_every= has no effect"),
)


@pytest.mark.parametrize(("text", "said"), [*OF_THE_OWN_TRAINER, *OF_FRAMEWORKS])
def test_keys_that_cannot_work_are_refused_with_what_can(text: str, said: str) -> None:
    error = refused(text)

    assert re.search(said, str(error)), error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama2-70b nodes=16 tensor_parallel=2", "size=64 would leave 64 of 128 GPUs without a s"),
        (
            "llama3.1-70b tensor_parallel=8 activation_checkpointing=full",
            "without tensor_parallel it fits as well, and a step takes",
        ),
        (
            "llama3.1-70b tensor_parallel=2",
            "tensor_parallel=2: 2 neighbouring GPUs share each sample: ",
        ),
        (
            # Two parts of two chunks do not divide this length.
            "llama3.1-70b sequence_length=65538 context_parallel=1 activation_checkpointing=full",
            "or with tensor_parallel=2 compile=false (about",
        ),
        ("llama3.1-8b sequence_length=131072", "it fits with context_parallel=16 ("),
        (
            "llama3.1-70b",
            "context_parallel=4: 4 GPUs share each sequence: 35.1 GiB of activations and logits on "
            "each, not 127.3; each receives 32.2 GB of keys and values a step, over the node's own",
        ),
        (
            "llama3.1-70b",
            "without context_parallel it needs 178 GiB and does not fit; with "
            "activation_checkpointing=full micro_batch_size=1 instead it does, and a step takes",
        ),
        ("llama3.1-70b context_parallel=32", "GB of keys and values a step, over the network"),
        (
            "llama3.1-70b context_parallel=2 sequence_length=131072",
            "without context_parallel it needs 2072 GiB and does not fit",
        ),
        ("mathstral-7b context_parallel=4", "without context_parallel it fits as well, and a ste"),
        ("llama2-70b nodes=16 context_parallel=2", "would leave 64 of 128 GPUs without a sample"),
        (
            f"{WHOLE} expert_parallel=8",
            "8 neighbouring GPUs share the experts of each block: 3.4 GiB of gathered weights on "
            "each, not 17.2; ",
        ),
        (f"{WHOLE} expert_parallel=8", "41.4 s, not 47.4, where computing hides that all"),
        (
            f"{WHOLE} nodes=16 instance=g6e.12xlarge expert_parallel=8",
            "GB of it from other nodes (none with expert_parallel=4), while",
        ),
        (f"{WHOLE} instance=p4d.24xlarge sequence_length=8192", "or with expert_parallel=4 (about"),
        (
            f"{WHOLE} instance=g7e.48xlarge sequence_length=4096",
            "with expert_parallel=4 a step takes",
        ),
        (
            "resnet50 dataset=/fsx/imagenet file_system=fs-0123456789abcdef0 epochs=3",
            "epochs=3 of 1,281,167 images are 3,754 steps; the trainer counts",
        ),
        ("ddp-cpu cpus=4", "cpus=4: each pod gets 4 of 8 CPUs; all are paid for"),
        ("llama2-7b efa=off", "efa=off: NCCL talks over TCP between nodes, to measure; the plan's"),
        ("resnet50 preset=smoke epochs=2", "epochs=2 of 256 images are "),
        ("tiny-llama epochs=9", "nobody knows yet how many steps that are, so duration and cost"),
        ("llama3.1-8b nodes=1 precision=float8", "1.28 times as fast as bf16"),
        ("llama3.1-8b nodes=1 precision=float8 compile=false", "add compile=true"),
        ("llama2-7b-finetune", "pods read meta-llama/Llama-2-7b-hf from the Hugging Face hub"),
        (
            "efficientnet-b7 dataset=s3://b-1/x nodes=4 instance=g5.12xlarge",
            "micro_batch_size=8 (about",  # of 24 images of a rank, 16 in a pass are too many
        ),
        ("llama2-7b sequence_length=8192", "longer than the 4,096 tokens"),
        ("llama3.2-1b instance=g4dn.8xlarge precision=fp32", "half as fast as bf16"),
        ("llama2-7b nodes=1 instance=g7e.48xlarge", "peak of RTX PRO 6000 is not known"),
        (
            "llama2-7b cpu_offload=true",
            "moving weights to host memory adds to computing: GPUs idle 30%",
        ),
        (f"{MEGATRON} checkpoint_every=1", "takes 3 min to write, longer than the 11 s between"),
        (
            f"{MEGATRON} pipeline_parallel=2 global_batch_size=32",
            "stages wait for each other 11% of a step",
        ),
        (
            f"{MEGATRON} pipeline_parallel=2 global_batch_size=4",
            "50% of a step, which has 1 micro-batch; a larger global_batch_size",
        ),
        (
            f"{MEGATRON} distributed_optimizer=false",
            "distributed_optimizer=false: each GPU keeps the optimizer's state",
        ),
        (MEGATRON, "nothing is learned"),
        (f"{TITAN} push_to=lab/model", "push_to=lab/model: after it"),
    ],
)
def test_plan_says_what_keys_give_and_take(text: str, said: str) -> None:
    warnings = start_of(text).plan.warnings

    assert any(said in warning for warning in warnings), warnings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llama2-7b", "FSDP full shard over 16 processes"),
        ("llama2-7b parallelism=hybrid", "hybrid: FSDP over the 8 processes of a node, 2 copies"),
        ("resnet50 dataset=s3://b-1/x", "DDP over 8 processes"),
        ("tiny-llama nodes=1", "one process"),
        (
            "llama2-7b tensor_parallel=4",
            "FSDP full shard over 4 groups of 4 processes that split every product",
        ),
        (
            "llama2-7b tensor_parallel=4 parallelism=hybrid",
            "hybrid: FSDP over the 2 groups of 4 processes that split every product of a node, "
            "2 copies",
        ),
        (
            "tiny-llama context_parallel=2",
            "FSDP full shard over 2 processes, each 2 of them sharing a sequence",
        ),
        (
            f"{WHOLE} expert_parallel=8",
            "FSDP full shard over 32 processes, experts of each block shared by 8 neighbours",
        ),
        (MEGATRON, "tensor parallel 2 x data parallel 8 over 16 GPUs"),
        (f"{MEGATRON} tensor_parallel=1 nodes=1 instance=p5.4xlarge", "one GPU"),
    ],
)
def test_parallelism_is_described_in_words(text: str, words: str) -> None:
    assert start_of(text).plan.parallelism == words
