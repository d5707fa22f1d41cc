from experiments.cli import main

if __name__ == "__main__":  # processes that compile import this module too
    main()
