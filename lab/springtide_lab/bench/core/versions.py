"""The peers' versions that work together, pinned. `python -m springtide_lab.bench.core.versions` prints them.

They are installed with `--no-deps`: TorchRec's own requirements would replace torch. fbgemm 1.9.0 does not import with
torch 2.13.0. DLRover's own requirements leave out what its master imports; these are they, and theirs.
"""

TORCH = "torch==2.13.0"
_PEERS = """
fbgemm-gpu-cpu==1.8.0 torchrec==1.9.2 numpy torchmetrics tensordict pyre-extensions iopath tqdm portalocker
lightning-utilities importlib_metadata cloudpickle orjson packaging typing-inspect mypy-extensions pyvers psutil zipp
"""
_DLROVER = """
dlrover==0.6.1 grpcio protobuf psutil pynvml nvidia-ml-py requests deprecated packaging tornado numpy wrapt kubernetes
certifi charset-normalizer idna urllib3 python-dateutil six pyyaml websocket-client requests-oauthlib oauthlib
durationpy aiohttp aiohttp-retry aiosignal aiohappyeyeballs attrs frozenlist multidict propcache yarl
typing_extensions pydantic pydantic_core annotated-types typing-inspection tzdata
"""
PEERS = tuple(_PEERS.split())
DLROVER = tuple(_DLROVER.split())

if __name__ == "__main__":
    print("\n".join(PEERS))
