"""The peers' versions that work together, pinned. `python -m springtide.bench.versions` prints them for a script.

They are installed with `--no-deps`: TorchRec's own requirements would replace torch.
"""

TORCH = "torch==2.13.0"
PEERS = (
    "fbgemm-gpu-cpu==1.8.0",  # 1.9.0 does not import with torch 2.13.0: undefined symbol
    "torchrec==1.9.2",
    "numpy",
    "torchmetrics",
    "tensordict",
    "pyre-extensions",
    "iopath",
    "tqdm",
    "portalocker",
    "lightning-utilities",
    "importlib_metadata",
    "cloudpickle",
    "orjson",
    "packaging",
    "typing-inspect",
    "mypy-extensions",
    "pyvers",
    "psutil",
    "zipp",
)

if __name__ == "__main__":
    print("\n".join(PEERS))
