"""Rules for memory, data, checkpoints and Python: what a training program itself prints."""

from __future__ import annotations

from typing import Final

from stationmaster.diagnosis.rules import DMESG, EVENT, LOG, Rank, Rule, Severity

RULES: Final = (
    Rule(
        id="oom-host",
        where=EVENT | DMESG,
        pattern=r"\bOOMKill(?:ed|ing)\b|out of memory: Killed process \d+",
        # 128 + SIGTERM: it was told to stop, and the kernel does not kill for memory like that.
        not_in=r"exit code 143\b",
        rank=Rank.KILLED,
        diagnosis="the kernel killed the process because the container used more memory than its "
        "limit; what it keeps in /dev/shm counts",
        remedy="start it again with less in memory (micro_batch_size=1, data_workers=0, "
        "cpu_offload=false), or on an instance type with more: "
        "`/train plan {recipe} instance=TYPE`",
        fix="micro_batch_size=1",
        source="Kubernetes, Assign Memory Resources to Containers and Pods",
    ),
    Rule(
        id="killed",
        where=LOG | EVENT,
        pattern=r"exitcode *: *-9\b(?: \(pid: (?P<pid>\d{1,9})\))?"
        r"|Signal 9 \(SIGKILL\) received by PID (?P<by>\d{1,9})|Signal 9 \(SIGKILL\)"
        r"|killed by SIGKILL|(?:exit )?code 137\b",
        rank=Rank.UNKNOWN_SIGNAL,
        diagnosis="a process was killed (SIGKILL); most often for memory, else by a person or with "
        "its node",
        remedy="`/train status {run}` and `kubectl describe pod` say OOMKilled where it was "
        "memory; `/train resume {run}` starts from the last saved checkpoint",
        source="torchrun's report of failures; 137 is 128 + SIGKILL",
        unless="killed-by-torchrun",
    ),
    Rule(
        id="killed-by-torchrun",
        pattern=r"Unable to shutdown process (?P<pid>\d{1,9}) via .{1,40}, forcefully exiting via",
        rank=Rank.NOTE,
        severity=Severity.INFO,
        diagnosis="torchrun killed a process that did not end after another one had failed",
        remedy="nothing to do",
        source="PyTorch torch/distributed/elastic/multiprocessing/api.py",
        is_shown=False,
    ),
    Rule(
        id="told-to-stop",
        pattern=r"Received (?:15|Signals\.SIGTERM) death signal|got signal: 15\b",
        rank=Rank.UNKNOWN_SIGNAL,
        diagnosis="the pod was told to stop from outside (SIGTERM): it was deleted, evicted or "
        "preempted, or its node was drained or taken",
        remedy="`kubectl get events` of the pod and its node says by whom; `/train resume {run}` "
        "continues from the last saved checkpoint",
        source="PyTorch torch/distributed/elastic/agent/server/api.py",
    ),
    Rule(
        id="duplicate-gpu",
        pattern=r"Duplicate GPU detected ?: rank (?P<one>\d{1,6}) and rank (?P<other>\d{1,6}) "
        r"both on CUDA device (?P<device>\w{1,20})",
        diagnosis="ranks {one} and {other} use one GPU ({device}): more processes than the pod has "
        "GPUs, or the program does not choose its own",
        remedy="start as many processes as the pod has GPUs (torchrun --nproc-per-node), and call "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective",
        source="NCCL init.cc",
    ),
    Rule(
        id="shm",
        pattern=r"killed by signal: Bus error|^Bus error|unable to open shared memory object"
        r"|error while creating shared memory segment|No space left on device.{0,80}/torch_",
        diagnosis="the container's /dev/shm is full; without a volume of its own it has 64 MB",
        remedy="mount an emptyDir with medium: Memory at /dev/shm (runs of `/train` have one), or "
        "start it again with data_workers=0; `stationmaster lint FILE` checks a manifest",
        source="PyTorch torch/utils/data/_utils/signal_handling.py; NCCL shmutils.cc",
    ),
    Rule(
        id="data-worker",
        pattern=r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]{1,99})\) "
        r"(?:exited unexpectedly|is killed by signal: )",
        rank=Rank.UNKNOWN_SIGNAL,
        diagnosis="a process that loads data ({pids}) ended without an error of its own; most "
        "often it was killed for memory, the container's or /dev/shm",
        remedy="`kubectl describe pod` says OOMKilled where it was memory; start it again with "
        "data_workers=0, or a script of your own without workers: errors are then seen",
        fix="data_workers=0",
        source="PyTorch torch/utils/data/dataloader.py, _utils/signal_handling.py",
    ),
    Rule(
        id="fork",
        pattern=r"\[Errno 12\] Cannot allocate memory",
        diagnosis="a process could not fork: EFA's huge pages are reserved for its children too",
        remedy="set FI_EFA_USE_HUGE_PAGE=0 in the pods (runs of `/train` do so), or start it again "
        "with data_workers=0",
        source="libfabric fi_efa(7), FI_EFA_USE_HUGE_PAGE; awslabs/awsome-distributed-ai#377",
    ),
    Rule(
        id="oom-gpu",
        pattern=r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory"
        r"|Cuda failure 2 'out of memory'",
        diagnosis="the GPU has too little memory for this model and batch; in the middle of a run "
        "also for a longer sample or by fragmentation",
        remedy="start it again with micro_batch_size=1 activation_checkpointing=full "
        "parallelism=full; `/train plan {recipe} micro_batch_size=1 "
        "activation_checkpointing=full` says whether that fits",
        fix="micro_batch_size=1 activation_checkpointing=full",
        source="PyTorch, CUDA semantics, memory management",
    ),
    Rule(
        id="vocabulary",
        pattern=r"device-side assert triggered|srcIndex < srcSelectDimSize"
        r"|IndexError: index out of range in self",
        diagnosis="an index was larger than its table, most often a token id beyond the model's "
        "vocabulary: the tokenizer belongs to another model",
        remedy="start it again without tokenizer=, or with the tokenizer of the model",
        source="PyTorch aten/src/ATen/native/cuda/Indexing.cu",
    ),
    Rule(
        id="gpu-architecture",
        pattern=r"no kernel image is available for execution"
        r"|with CUDA capability (?P<sm>sm_\d+) is not compatible",
        diagnosis="the image's PyTorch was built without code for this GPU",
        remedy="use an image with a newer PyTorch (image=...), or `/train {recipe}` without image=",
        source="PyTorch torch/cuda/__init__.py; awslabs/awsome-distributed-ai#103",
    ),
    Rule(
        id="gpu-driver",
        pattern=r"CUDA driver version is insufficient|forward compatibility was attempted"
        r"|NVIDIA driver on your system is too old",
        diagnosis="the node's NVIDIA driver is older than the image's CUDA needs",
        remedy="use a newer machine image for the nodes, or an older CUDA in the image: image=...",
        source="NVIDIA, CUDA compatibility",
    ),
    Rule(
        id="hub-gated",
        pattern=r"GatedRepoError|401 Client Error|Cannot access gated repo"
        r"|Access to model \S{1,120} is restricted"
        r"|40[13] (?:Client Error|Forbidden|Unauthorized).{0,160}(?:huggingface|hf)\.co\b",
        diagnosis="the Hugging Face hub refused access: no valid token, or the model's licence was "
        "not accepted",
        remedy="accept the licence on the model's page, and put the token into the deployment's "
        "secret; `/train preflight {recipe}` says whether it is there",
        source="huggingface_hub errors.py",
    ),
    Rule(
        id="hub-limit",
        pattern=r"429 Client Error|HfHubHTTPError: 429|Too Many Requests",
        diagnosis="the Hugging Face hub limits the requests: many ranks read from it at once",
        remedy="start it again with dataset=packed:hub:ORG/NAME, which downloads once, and with a "
        "token in the deployment's secret (`/train preflight {recipe}`)",
        source="Hugging Face hub, rate limits",
    ),
    Rule(
        id="hub-down",
        pattern=r"(?:HfHubHTTPError: )?(?P<code>50[0234]) Server Error: .{0,80}huggingface\.co",
        diagnosis="the Hugging Face hub answered with an error of its own ({code})",
        remedy="`/train resume {run}`, or start it again with dataset=packed:hub:ORG/NAME, which "
        "downloads once",
        source="huggingface_hub errors.py",
    ),
    Rule(
        id="hub-stream",
        pattern=r"Got disconnected from remote data host|RemoteDisconnected"
        r"|(?:ConnectTimeout|ReadTimeout|ConnectionError|IncompleteRead|MaxRetryError).{0,200}"
        r"(?:huggingface\.co|hf\.co)"
        r"|couldn't connect to 'https://huggingface\.co'"
        r"|HTTPSConnectionPool\(host='[\w.-]{0,60}(?:huggingface|hf)\.co'",
        diagnosis="reading from the Hugging Face hub stopped or failed while training waited for "
        "it",
        remedy="start it again with dataset=packed:hub:ORG/NAME, which downloads the data once; "
        "`/train resume {run}` continues where a checkpoint was saved",
        source="datasets/utils/file_utils.py, streaming retries; urllib3",
    ),
    Rule(
        id="hub-missing",
        pattern=r"is not a valid model identifier|Can't load tokenizer for '(?P<what>[^']{1,120})'",
        diagnosis="the model or tokenizer is neither on the hub nor a folder in the container",
        remedy="check the name, ORG/MODEL, or the path on the shared file system; "
        "`/train plan hf:ORG/MODEL` looks a model up before it costs anything",
        source="transformers utils/hub.py, tokenization_utils_base.py",
    ),
    Rule(
        id="hub-data",
        pattern=r"EmptyDatasetError|FileNotFoundError: (?:gzip|zstd|xz|bz2|lzma|zip|hf)://"
        r"|FileNotFoundError: Unable to find 'hf://",
        diagnosis="streaming the data set from the hub failed: its files were not found",
        remedy="start it again with dataset=packed:hub:ORG/NAME, which downloads it once",
        source="awslabs/awsome-distributed-ai#635, #716",
    ),
    Rule(
        id="not-finite",
        pattern=r"Unexpected result nan|found (?:NaN|Inf) in local"
        r"|\b(?:lm )?loss[:= ]{1,8}[-+]?(?:nan|inf)(?:inity)?\b"
        r"|number of nan iterations: +[1-9]|was nan or infinite|expected finite numbers",
        diagnosis="the loss or the gradient is not finite any more",
        remedy="`/train resume {run} learning_rate=...` from the last checkpoint with a lower "
        "rate; in the first steps also check the weights and the data",
        source="Megatron-LM rerun_state_machine.py, training.py",
    ),
    Rule(
        id="gradient-norm",
        pattern=r"\bgrad[ _]norm: *(?P<norm>[1-9]\d{2,}(?:\.\d+)?)\b",
        rank=Rank.NOTE,
        severity=Severity.WARNING,
        diagnosis="the norm of the gradient reached {norm}; 0.1 to 10 is usual, above 100 training "
        "may diverge",
        remedy="`/train stop {run}`, then start it again with a lower learning_rate or more "
        "warmup_steps",
        source="Megatron workshop, monitoring, health ranges",
    ),
    Rule(
        id="checkpoint-empty",
        pattern=r"(?:RuntimeError|ValueError|AssertionError): .{0,120}state_dict is empty",
        diagnosis="the program asked the checkpoint for nothing: it passed an empty state dict to "
        "the loader",
        remedy="pass the model's own state dict as the template to torch.distributed.checkpoint; "
        "`/train resume {run}` does so for the product's own trainer",
        source="torch.distributed.checkpoint; awsome-distributed-ai's FSDP2 example",
    ),
    Rule(
        id="checkpoint-mismatch",
        pattern=r"size mismatch for \S|Missing key\(s\) in state_dict|Missing key in checkpoint"
        r"|Size mismatch between saved",
        diagnosis="the checkpoint is of another model: two recipes share a directory, or the model "
        "was changed",
        remedy="give each recipe its own checkpoint directory, or start without resume_from= and "
        "weights=",
        source="PyTorch Module.load_state_dict; torch/distributed/checkpoint/default_planner.py",
    ),
    Rule(
        id="checkpoint-torn",
        pattern=r"PytorchStreamReader failed|EOFError: Ran out of input",
        diagnosis="a checkpoint or model file is not complete: it was read while it was written, "
        "or its writer was killed",
        remedy="remove the file and start again from the checkpoint before; "
        "`stationmaster results {run}` lists those that are saved and verified",
        source="PyTorch caffe2/serialize/inline_container.cc",
    ),
    Rule(
        id="checkpoint-timeout",
        pattern=r"CheckpointException.{0,300}?(?:timed out|timeout)"
        r"|failed to pass monitoredBarrier in \d+ ms",
        diagnosis="saving or loading a checkpoint took longer than ranks wait for each other: the "
        "file system is too slow for its size",
        remedy="start it again with file_system_type=persistent-500 or a larger file_system=GIB; "
        "`/train plan {recipe}` says how long a checkpoint takes",
        source="torch.distributed.checkpoint api.py; gloo monitored barrier",
    ),
    Rule(
        id="checkpoint-incomplete",
        pattern=r"metadata not found\. Skipping this incomplete checkpoint",
        rank=Rank.NOTE,
        severity=Severity.INFO,
        diagnosis="a checkpoint was not complete, and the one before it is used",
        remedy="nothing to do; the steps since then are taken again",
        source="awsome-distributed-ai, FSDP model_utils/checkpoint.py",
    ),
    Rule(
        id="not-launched",
        pattern=r"(?:KeyError: '|env:// rendezvous: environment variable )"
        r"(?P<name>(?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))(?:'| expected)",
        diagnosis="the script expects {name}, which torchrun sets, and torchrun did not start it",
        remedy='start it with command="torchrun SCRIPT ...", in place of python',
        source="PyTorch torch/distributed/rendezvous.py",
    ),
    Rule(
        id="module-missing",
        pattern=r"ModuleNotFoundError: No module named '(?P<module>(?!etcd')[\w.]{1,100})'",
        diagnosis="the image has no Python module {module}",
        remedy="install it in the image (image=...), or `/train {recipe}` without image= and "
        "command=",
        source="Python, ModuleNotFoundError",
    ),
    Rule(
        id="command-missing",
        where=LOG | EVENT,
        pattern=r'exec: "(?P<program>[^"]{1,200})": (?:executable file not found|stat )'
        r"|(?:^|: )\S{0,120}torchrun: No such file|: (?:line )?\d+: \S{1,120}: command not found"
        r"|: \S{1,120}: command not found",
        diagnosis="the image does not have the program that the command starts",
        remedy="start `python -m torch.distributed.run` in place of a path to torchrun, and check "
        "command= against the image",
        source="containerd; newer PyTorch images have no /opt/conda",
    ),
    Rule(
        id="script-missing",
        pattern=r"can't open file '(?P<script>[^']{1,200})': \[Errno 2\]",
        diagnosis="the image does not have the script {script}",
        remedy="copy it into the image, or put it on the shared file system and name that path in "
        "command=",
        source="CPython pymain_open_filename",
    ),
    Rule(
        id="arguments",
        pattern=r"error: unrecognized arguments: (?P<arguments>.{1,120})",
        diagnosis="the program does not know these arguments: {arguments}",
        remedy="correct them in command=; `/train plan {recipe}` lists the keys of a recipe",
        source="Python, argparse",
    ),
    Rule(
        id="disk-full",
        pattern=r"\[Errno 28\] No space left on device(?!.{0,80}/torch_)"
        r"|\[Errno 122\] Disk quota exceeded",
        diagnosis="a disk or file system is full",
        remedy="start it again with a larger file_system=GIB, and write to the shared file system: "
        "the container's own disk is the node's root volume",
        source="errno ENOSPC",
    ),
    Rule(
        id="crash",
        where=LOG | EVENT,
        pattern=r"Segmentation fault|Signal 11 \(SIGSEGV\)|exitcode *: *-11\b|code 139\b",
        diagnosis="a process crashed in native code (SIGSEGV): libraries that do not fit together, "
        "or faulty memory",
        remedy="`/train logs {run}`; try `/train {recipe}` without image=; where it always is the "
        "same node, replace that",
        source="torchrun's report of failures; 139 is 128 + SIGSEGV",
    ),
    Rule(
        id="abort",
        pattern=r"exitcode *: *-6\b|Signal 6 \(SIGABRT\)",
        rank=Rank.CONSEQUENCE,
        diagnosis="a process ended itself (SIGABRT), most often NCCL's watchdog after it had "
        "waited for another rank",
        remedy="`/train logs {run}`: the lines before it name the operation or the error",
        source="PyTorch ProcessGroupNCCL.cpp, TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    Rule(
        id="child-failed",
        pattern=r"ChildFailedError",
        rank=Rank.WRAPPER,
        diagnosis="torchrun ended because one of its processes did",
        remedy="`/train logs {run}`: its block Root Cause names the rank, and the lines above say "
        "why",
        source="PyTorch torch/distributed/elastic/multiprocessing/errors",
    ),
)
