"""Pin versions of the peers that work together. `python -m springtide_lab.bench.core.versions` prints these versions.

The packages are installed with `--no-deps`, because TorchRec's requirements would replace torch. fbgemm 1.9.0 cannot be
imported with torch 2.13.0. DLRover's requirements omit packages that its master imports. The list below includes the
omitted packages and their dependencies.
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
