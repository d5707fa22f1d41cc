import os
import sys

if __name__ == "__main__":  # processes that compile import this module too
    try:
        from experiments.cli import main

        main()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        sys.exit(141)  # as a process that SIGPIPE ends
    except ModuleNotFoundError as error:
        if error.name not in ("hydra", "omegaconf", "psutil", "rich"):
            raise
        sys.exit(
            f"python -m experiments needs {error.name}, which {sys.executable} does not have: "
            f"pip install -e '.[laboratory]', or, after make run, which installs everything into "
            f".venv: . .venv/bin/activate"
        )
    except KeyboardInterrupt:  # while something is imported
        sys.exit(130)
