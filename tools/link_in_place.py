"""Make this checkout importable and its command runnable in the environment that runs this script."""

import pathlib
import sys
import sysconfig

root = pathlib.Path(__file__).resolve().parent.parent
site = pathlib.Path(sysconfig.get_paths()["purelib"])
(site / "springtide-in-place.pth").write_text(f"{root}\n{root / 'lab'}\n")
command = pathlib.Path(sys.executable).parent / "springtide"
command.write_text(f"#!{sys.executable}\nimport sys\nfrom springtide.cli.app import main\nsys.exit(main())\n")
command.chmod(0o755)
