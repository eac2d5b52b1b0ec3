"""`ssd target`, `ssd draft`, `ssd router`: one service in this process."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ssd import config
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.cli.lifeline import end_with_stdin
from ssd.cli.options import (
    ConfigFile,
    DefaultBudget,
    DefaultFallback,
    DefaultFanOut,
    DefaultFanOutRule,
    DefaultK,
    DefaultMode,
    DefaultSaguaroC,
    DefaultVerification,
    Deterministic,
    Dtype,
    MetricsListen,
    Threads,
    Tp,
    switch,
)
from ssd.config import DraftConfig, RouterConfig, TargetConfig
from ssd.rpc.server import StartupError

Listen = Annotated[str | None, typer.Option(help="host:port; port 0 = any free one.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")]
KvTokens = Annotated[int | None, typer.Option(help="KV room in all, tokens; 0 = what is free on the GPU.")]
MaxSequences = Annotated[int | None, typer.Option(help="Most sequences held at once.")]
TokenBudget = Annotated[int | None, typer.Option(help="Most tokens in one step.")]
MaxContext = Annotated[int | None, typer.Option(help="Longest prompt + output, tokens; 0 = the model's own limit.")]
MaxK = Annotated[int | None, typer.Option("--max-k", help="Longest proposal.")]
AttentionName = Annotated[str | None, typer.Option("--attention", help="auto, torch, triton or flash_attn.")]
CudaGraphs = Annotated[
    bool | None, typer.Option("--cuda-graphs/--no-cuda-graphs", help="Steps as CUDA graphs. Default: on a GPU.")
]
Compile = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="torch.compile makes the layers' kernels. Default: no.")
]
MemoryFraction = Annotated[
    float | None, typer.Option(help="Of a GPU's memory, for this process; what is left of it is KV room.")
]
EarlyLaunch = Annotated[
    bool | None,
    typer.Option(
        "--early-launch/--no-early-launch", help="Place kernels on the GPU while the one before runs (capability 9)."
    ),
]
GpuShare = Annotated[
    int | None, typer.Option(help="Percent of the GPU's multiprocessors, where processes share it under MPS.")
]
EndWithStdin = Annotated[bool, typer.Option("--end-with-stdin", hidden=True)]


def target(
    listen: Listen = None,
    model: Annotated[str | None, typer.Option(help="A built-in name, a Hugging Face directory or a GGUF file.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    kv_tokens: KvTokens = None,
    max_sequences: MaxSequences = None,
    token_budget: TokenBudget = None,
    max_context: MaxContext = None,
    attention: AttentionName = None,
    cuda_graphs: CudaGraphs = None,
    compiled: Compile = None,
    early_launch: EarlyLaunch = None,
    memory_fraction: MemoryFraction = None,
    gpu_share: GpuShare = None,
    tp: Tp = None,
    max_k: MaxK = None,
    file: ConfigFile = None,
    lifeline: EndWithStdin = False,
) -> None:
    """Serve the target: it verifies proposals and draws every token."""
    engine = {
        "device": device,
        "dtype": dtype,
        "deterministic": switch(deterministic),
        "threads": threads,
        "kv_tokens": kv_tokens,
        "max_sequences": max_sequences,
        "token_budget": token_budget,
        "max_context": max_context,
        "attention": attention,
        "cuda_graphs": switch(cuda_graphs),
        "compile": switch(compiled),
        "early_launch": switch(early_launch),
        "memory_fraction": memory_fraction,
        "gpu_share": gpu_share,
        "tp": tp,
    }
    values = {"listen": listen, "model": model, "max_k": max_k, "engine": engine}
    _run("target", TargetConfig, file, values, lifeline)


def draft(
    listen: Listen = None,
    model: Annotated[str | None, typer.Option(help="A built-in name or a Hugging Face directory.")] = None,
    target_model: Annotated[
        str | None, typer.Option(help="Gives embedding, head and tokenizer to a draft without its own.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    deterministic: Deterministic = None,
    threads: Threads = None,
    kv_tokens: KvTokens = None,
    max_sequences: MaxSequences = None,
    token_budget: TokenBudget = None,
    max_context: MaxContext = None,
    attention: AttentionName = None,
    cuda_graphs: CudaGraphs = None,
    compiled: Compile = None,
    early_launch: EarlyLaunch = None,
    memory_fraction: MemoryFraction = None,
    gpu_share: GpuShare = None,
    tp: Tp = None,
    max_k: MaxK = None,
    max_branches: Annotated[int | None, typer.Option(help="Most branches of one outcome table.")] = None,
    file: ConfigFile = None,
    lifeline: EndWithStdin = False,
) -> None:
    """Serve the draft: it anticipates how verifications may end and prepares the next proposals."""
    engine = {
        "device": device,
        "dtype": dtype,
        "deterministic": switch(deterministic),
        "threads": threads,
        "kv_tokens": kv_tokens,
        "max_sequences": max_sequences,
        "token_budget": token_budget,
        "max_context": max_context,
        "attention": attention,
        "cuda_graphs": switch(cuda_graphs),
        "compile": switch(compiled),
        "early_launch": switch(early_launch),
        "memory_fraction": memory_fraction,
        "gpu_share": gpu_share,
        "tp": tp,
    }
    values = {"listen": listen, "model": model, "target_model": target_model, "max_k": max_k, "engine": engine}
    _run("draft", DraftConfig, file, values | {"max_branches": max_branches}, lifeline)


def router(
    listen: Listen = None,
    model: Annotated[str | None, typer.Option(help="Whose tokenizer and chat template are used.")] = None,
    model_name: Annotated[str | None, typer.Option(help="The name clients use.")] = None,
    targets: Annotated[
        list[str] | None, typer.Option("--target", help="host:port of a target; may be given several times.")
    ] = None,
    drafts: Annotated[
        list[str] | None, typer.Option("--draft", help="host:port of a draft; may be given several times.")
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Connect to no draft: plain decoding.")] = False,
    mode: DefaultMode = None,
    k: DefaultK = None,
    fan_out: DefaultFanOut = None,
    fan_out_rule: DefaultFanOutRule = None,
    budget: DefaultBudget = None,
    verification: DefaultVerification = None,
    saguaro_c: DefaultSaguaroC = None,
    fallback: DefaultFallback = None,
    drafts_per_sequence: Annotated[
        int | None, typer.Option(help="Drafts that share a sequence's fan-out, for requests that name none.")
    ] = None,
    metrics_listen: MetricsListen = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output limit of requests that set none.")] = None,
    max_live: Annotated[int | None, typer.Option(help="Requests admitted at once.")] = None,
    file: ConfigFile = None,
    lifeline: EndWithStdin = False,
) -> None:
    """Serve the public API; needs a target, and a draft for speed."""
    if no_draft and drafts:
        raise CliError("--no-draft and --draft exclude each other", BAD_INPUT)
    values = {
        "listen": listen,
        "model": model,
        "model_name": model_name,
        "targets": targets or None,
        "drafts": [] if no_draft else drafts or None,
        "mode": mode,
        "k": k,
        "fan_out": fan_out,
        "fan_out_rule": fan_out_rule,
        "budget": budget,
        "verification": verification,
        "saguaro_c": saguaro_c,
        "fallback": fallback,
        "drafts_per_sequence": drafts_per_sequence,
        "metrics_listen": metrics_listen,
        "max_tokens": max_tokens,
        "max_live": max_live,
    }
    _run("router", RouterConfig, file, values, lifeline)


def _run(name: str, kind: type[Any], file: Path | None, values: Mapping[str, Any], lifeline: bool) -> None:
    settings = config.load(kind, name, file=file, overrides=values)
    if lifeline:
        end_with_stdin()
    # By name and only now: the core must not depend on the services, and a router must not import torch.
    service = importlib.import_module(f"{name}_service.main" if name != "router" else "router.main")
    try:
        status = service.main(settings)
    except StartupError as error:
        raise CliError(str(error), BAD_INPUT) from None
    raise typer.Exit(status)
